#!/usr/bin/env bash
# The agent on a GPU: sleep and wake of a PyTorch program that nobody changed, a captured graph, idle, and what
# the agent costs. Leaves the results as JSON.
#   ./agent.sh RESULTS [OPTIONS OF agent.py]
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:?usage: agent.sh RESULTS [OPTIONS]}")
shift
mkdir -p "$out"
export LOWTIDE_AGENT_LIBRARY="$here/liblowtide_agent.so"
timeout 1500 python3 "$here/agent.py" --lowtide "$here/lowtide" --cost "$here/cost" --results "$out/agent.json" "$@"
