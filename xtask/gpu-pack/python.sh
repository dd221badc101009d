#!/usr/bin/env bash
# The Python package on a machine with a GPU: its tests, the requirements on the device, the zoo there,
# the zoo with other tools, models one after another, what releases cost. What each printed goes to the
# folder of results.
#   ./python.sh RESULTS [tests requirements zoo compare stages speed cost]
set -u
here=$(cd "$(dirname "$0")" && pwd)
results=$(realpath -m "$1")
shift
parts=${*:-tests requirements zoo compare stages speed cost}
mkdir -p "$results" "$here/site"
for wheel in "$here"/python/*.whl; do
    python3 -m zipfile -e "$wheel" "$here/site"
done
export PYTHONPATH="$here/site:$here/python/tests" PYTHONDONTWRITEBYTECODE=1
cd "$here/python" || exit 3
failed=0
part() { # name, command: whether it passed, and its last lines
    local name=$1
    shift
    if "$@" >"$results/$name.txt" 2>&1; then
        echo "$name: passed"
    else
        echo "$name: failed"
        failed=1
    fi
    tail -n 6 "$results/$name.txt" | cut -c1-160
}
# A program takes about eight seconds on a device, most of them in the driver: fourteen processes run a few each.
in_shares() { # tests
    local alone="python3 -m pytest -q -rf -p no:cacheprovider --rootdir=$PWD -c /dev/null"
    $alone --collect-only "$@" | grep :: >"$results/shares.list"
    xargs -P 14 -n 6 $alone <"$results/shares.list"
}
for name in $parts; do
    case $name in
    tests) part tests python3 -X faulthandler -m pytest -q -p no:cacheprovider tests ;;
    requirements) # One after another: the driver's number is that of the whole device.
        export ZOO_DEVICE=cuda LOWTIDE_DEMAND_GPU=1
        part requirements python3 -m pytest -q -rfs -p no:cacheprovider --rootdir="$PWD" -c /dev/null \
            tests/test_requirements_*.py tests/test_claims.py tests/test_shutdown_shared.py tests/test_worker.py
        unset ZOO_DEVICE LOWTIDE_DEMAND_GPU
        part tag python3 "$here/tag.py" --results "$results/tag.json"
        ;;
    zoo)
        export ZOO_DEVICE=cuda LOWTIDE_DEMAND_GPU=1
        part zoo in_shares tests/test_zoo.py -k "by_lowtide or by_cut"
        unset ZOO_DEVICE LOWTIDE_DEMAND_GPU
        ;;
    compare) part compare python3 bench/compare_zoo.py --device cuda --jobs 14 --json "$results/compare.json" ;;
    stages) part stages python3 bench/stages.py --json "$results/stages.json" ;;
    speed)
        part speed python3 bench/why_speed.py --json "$results/why_speed.json"
        part scattered python3 bench/why_speed.py --scattered --json "$results/why_scattered.json"
        ;;
    cost) part cost python3 bench/cost.py --json "$results/cost.json" ;;
    *) echo "there is no part $name" && exit 2 ;;
    esac
done
exit $failed
