#!/usr/bin/env bash
# Runs everything that only a GPU can tell, and leaves the results as JSON.
# Usage: ./run.sh FOLDER-FOR-RESULTS
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: run.sh FOLDER-FOR-RESULTS}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export LOWTIDE_REQUIRE_GPU=1 LOWTIDE_RESULTS="$out" XDG_CACHE_HOME="$out/.cache"
failed=0
step() {
    echo "== $1"
    shift
    timeout 180 "$@" || { echo "== failed: $*"; failed=1; }
}

cat > "$out/machine.json" <<JSON
{
  "commit": "$(tr -d '\n' < "$here/commit.txt")",
  "date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "gpu": "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)",
  "driver": "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)",
  "kernel": "$(uname -r)",
  "glibc": "$(ldd --version | head -1 | grep -o '[0-9.]*$')",
  "cores": $(nproc)
}
JSON
cat "$out/machine.json"

step "conformance of cuda:0" "$here/device_suites" --suite conformance --on cuda
step "conformance of host" "$here/device_suites" --suite conformance --on host
step "rules of the driver" "$here/device_suites" --suite rules --on cuda
step "a thousand turns of sleep and wake" "$here/pool_suites" --suite turns --on cuda
step "captures" "$here/pool_suites" --suite captures --on cuda
step "requirements" "$here/requirements" --suite requirements --on cuda
step "doctor" "$here/lowtide" doctor
step "ps" "$here/lowtide" ps
step "ps as JSON" bash -c '"$0" ps --json > "$1/ps.json"' "$here/lowtide" "$out"
step "measure" bash -c '"$0" doctor --measure --json > "$1/doctor.json"' "$here/lowtide" "$out"
step "demo" "$here/lowtide" demo
step "demo as JSON" bash -c '"$0" demo --json --hold 300 > "$1/demo.json"' "$here/lowtide" "$out"
if python3 -c 'import torch' 2> /dev/null; then
    step "a plain pinned copy" bash -c 'set -o pipefail; python3 "$0/plain_copy.py" | tee "$1/plain_copy.json"' "$here" "$out"
else
    echo "== a plain pinned copy: skipped, no PyTorch here"
fi
step "measure, for people" "$here/lowtide" doctor --measure --device cuda:0
rm -rf "$out/.cache"
exit "$failed"
