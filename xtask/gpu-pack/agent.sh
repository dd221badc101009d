#!/usr/bin/env bash
# The agent on a GPU: sleep and wake of a PyTorch program that nobody changed, what the agent costs, programs of
# several frameworks put to sleep, a hundred idle turns, the driver's quiet functions asleep, locked
# and checkpointed, wrong calls with and without the agent, processes that share memory, many small programs, and a program that is
# suspended, also with its helper killed. Leaves the results as JSON and text.
#   ./agent.sh RESULTS [sleep many loops frameworks idle every misuse sharing programs suspend away kills]
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:?usage: agent.sh RESULTS [PARTS]}")
shift
mkdir -p "$out"
export LOWTIDE_AGENT_LIBRARY="$here/liblowtide_agent.so" PYTHONUNBUFFERED=1
XDG_RUNTIME_DIR=$(mktemp -d)
export XDG_RUNTIME_DIR
failed=0
part() { # name, limit in seconds, command
    echo "== $1"
    timeout -k 10 "$2" python3 "${@:3}" --lowtide "$here/lowtide" 2>&1 | tee "$out/$1.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || { echo "== failed: $1"; failed=1; }
}
for name in ${*:-sleep many loops frameworks idle every misuse sharing programs suspend away kills}; do
    case $name in
    sleep) part sleep 200 "$here/agent.py" --turns 0 --results "$out/sleep.json" ;;
    many) part many 200 "$here/agent.py" --count 1792 --mib 20 --turns 0 --results "$out/many.json" ;;
    loops) part loops 400 "$here/loops.py" --cost "$here/cost" --results "$out/loops.json" ;;
    frameworks) part frameworks 300 "$here/frameworks.py" --results "$out/frameworks.json" ;;
    idle) part idle 400 "$here/frameworks.py" --only-turns --turns 100 --results "$out/idle.json" ;;
    every)
        part asleep 60 "$here/every_quiet.py" asleep --agent "$LOWTIDE_AGENT_LIBRARY" --results "$out/asleep.json"
        part locked 60 "$here/every_quiet.py" locked --results "$out/locked.json"
        part checkpointed 120 "$here/every_quiet.py" checkpointed --waiting "$out/locked.json" --results "$out/checkpointed.json"
        ;;
    misuse) part misuse 580 "$here/misuse.py" --agent "$LOWTIDE_AGENT_LIBRARY" --results "$out/misuse.tsv" ;;
    sharing) part sharing 580 "$here/sharing.py" --results "$out/sharing.json" ;;
    programs) part programs 580 "$here/programs.py" --results "$out/programs.json" ;;
    suspend) part suspend 200 "$here/suspend.py" --results "$out/suspend.json" ;;
    away) part away 400 "$here/suspend.py" --only-turns --turns 50 --results "$out/away.json" ;;
    kills) part kills 580 "$here/suspend.py" --only-turns --kills 200 --results "$out/kills.json" ;;
    *) echo "there is no part $name" && exit 2 ;;
    esac
done
exit $failed
