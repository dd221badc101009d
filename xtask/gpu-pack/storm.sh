#!/usr/bin/env bash
# The storm, which needs no GPU, on a machine with many cores: several at once, each with its own seed,
# half of them on host and half on the driver double.
#   ./storm.sh RESULTS [MINUTES] [STORMS] [FIRST-SEED]
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=$(realpath -m "${1:?usage: storm.sh RESULTS [MINUTES] [STORMS] [FIRST-SEED]}")
minutes=${2:-9} storms=${3:-6} seed=${4:-$(date +%s)}
mkdir -p "$results"
export LOWTIDE_DOUBLE_LIBRARY="$here/liblowtide_testing.so"
running=()
for ((number = 0; number < storms; number++)); do
    on=$([ $((number % 2)) = 0 ] && echo host || echo double)
    name="storm-$on-$((seed + number))"
    "$here/storm" --minutes "$minutes" --on "$on" --seed $((seed + number)) --json \
        >"$results/$name.json" 2>"$results/$name.err" &
    running+=("$!:$name")
done
failed=0
for one in "${running[@]}"; do
    wait "${one%%:*}" || { echo "${one#*:}: failed"; head -n 4 "$results/${one#*:}.err" | cut -c1-900; failed=1; }
done
echo "$storms storms of $minutes minutes, seeds $seed to $((seed + storms - 1)): $([ $failed = 0 ] && echo clean || echo failed)"
exit $failed
