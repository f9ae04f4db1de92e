#!/usr/bin/env bash
# Runs what needs a GPU: the tests with the label cuda, the same tests under compute-sanitizer, the kernel benchmarks, and
# the four programs. Writes a record into a folder, to be kept under docs/results/.
#
# Usage: tests/on_gpu.sh BUILD RECORD [tests] [sanitizers] [benchmarks] [programs] [servers]   (all, if none is named;
# memcheck, racecheck, initcheck or synccheck runs one sanitizer)
set -uo pipefail

[ $# -ge 2 ] || { sed -n 2,6p "$0" >&2; exit 2; }
build=$1 record=$2
shift 2
compgen -G "$build/bin/cuda_*_test" >/dev/null || {
  echo "error: $build/bin holds no cuda_*_test; build everything first: cmake --build $build" >&2
  exit 2
}
[ $# -gt 0 ] || set -- tests sanitizers benchmarks programs servers
mkdir -p "$record"
summary=$record/summary.txt
failed=0

say() { echo "$*" | tee -a "$summary"; }

describe_machine() {
  say "date: $(date -u +%Y-%m-%dT%H:%MZ)"
  say "gpu, driver, memory: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"
  say "cuda: $(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
}

# Runs a command with its output in a file, and notes its result and the line that tells it.
note() {
  local name=$1 log=$record/$2 pattern=$3 code
  shift 3
  "$@" >"$log" 2>&1
  code=$?
  say "$name: exit $code; $(grep -E "$pattern" "$log" | tail -1)"
  [ $code -eq 0 ] || failed=1
}

# Without a GPU, a program skips all its tests and says "passed". Here that is a failure.
run_tests() {
  local test name
  for test in "$build"/bin/cuda_*_test; do
    name=$(basename "$test")
    note "$name" "$name.txt" 'PASSED|FAILED|SKIPPED' "$test"
    grep -E '^\[  FAILED  \]|^\[  SKIPPED \]' "$record/$name.txt" | sort -u | tee -a "$summary"
    grep -qE '^\[       OK \]|^\[  FAILED  \]' "$record/$name.txt" && continue
    say "error: $name: no test has run"
    failed=1
  done
}

# Under a sanitizer a kernel runs some fifty times slower. So these are left out: the tests named Large and HugePool, which
# move gigabytes or start 65,536 thread blocks and more; two long tests of the paged store, except under memcheck; all
# tests with whole models but one; and all but a few tokens of each program. Racecheck is slower still, by the number of
# accesses to shared memory. For racecheck alone, the choice of ids leaves out the combinations of parameters (other tests
# go through greedy, temperature, top-k and top-p) and the vocabularies of real models, and whole models run only in the
# programs. Each test runs for itself, eight at a time: on an H200 three tools take two minutes, racecheck nine.
run_sanitizers() {
  local tool test name filter step tests n log=$record/sanitizers-$1.txt
  for tool in "$@"; do
    for test in "$build"/bin/cuda_*_test; do
      name=$(basename "$test")
      filter='-*.Large*:*HugePool*'
      case $name in
        cuda_program_test | cuda_server_test) continue ;;
        cuda_reference_test)
          [ "$tool" = racecheck ] && continue
          filter='*ShortTypes*/qwen3_tied'
          ;;
        cuda_sampling_test) [ "$tool" != racecheck ] || filter="$filter:*AllParameters*:*RealModels*" ;;
        cuda_paged_kv_store_test) [ "$tool" = memcheck ] || filter="$filter:*TwoBatches*:*ManySequences*" ;;
      esac
      tests=$("$test" --gtest_filter="$filter" --gtest_list_tests | grep -c '^  ')
      for ((n = 0; n < tests; ++n)); do
        echo "$tool $name-$n $tests $n $test --gtest_filter=$filter --gtest_brief=1"
      done
    done
    for step in step1_no_cache step2_flat_cache step3_paged step4_prefix_cache; do
      echo "$tool $step-0 1 0 $build/bin/$step --device cuda --tokens 4 --ids 1,2,3 --ids 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18"
    done
  done | xargs -P 8 -L 1 bash -c '
    export GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$4  # a test that only reckons starts no kernel: no fault
    timeout 600 compute-sanitizer --tool "$1" --error-exitcode 9 --require-cuda-init no "${@:5}" >"$0/$1-$2.txt" 2>&1
    echo "$1 $2: exit $?; $(grep -hE "ERROR SUMMARY|RACECHECK SUMMARY" "$0/$1-$2.txt" | tail -1)"' "$record" >"$log"
  grep -v "exit 0;" "$log" | tee -a "$summary" && failed=1
  awk '{ sub(/-[0-9]+:$/, "", $2); runs[$1 " " $2]++; bad[$1 " " $2] += $4 != "0;" }
       END { for (of in runs) print of ": " runs[of] " runs, " bad[of] " failed" }' "$log" | sort | tee -a "$summary"
}

run_benchmarks() {
  note bench_kernels bench_kernels.txt 'ERROR|^error' "$build/bin/bench_kernels" --benchmark_filter=cuda/ \
    --benchmark_counters_tabular=true \
    --benchmark_out="$record/bench_kernels.json" --benchmark_out_format=json
  ! grep -q 'ERROR OCCURRED' "$record/bench_kernels.txt" || failed=1
  cat "$record/bench_kernels.txt"
}

run_programs() {
  local step weights
  for weights in fairytale qwen3-0.6b; do
    for step in step1_no_cache step2_flat_cache step3_paged step4_prefix_cache; do
      local options=(--device cuda --tokens 64 --ignore-eos --json)
      [ $weights = fairytale ] || options+=(--random-weights "$weights")
      note "$step $weights" "$step-$weights.json" '^error' "$build/bin/$step" "${options[@]}"
      python3 - "$record/$step-$weights.json" <<'PYTHON' | tee -a "$summary"
import json, sys
report = json.load(open(sys.argv[1]))
timing = report["timing"]
print(f'  {report["dtype"]}: prefill {timing["prefill_ms"]:.2f} ms, {timing["ms_per_token"]:.3f} ms per token, '
      f'K/V reserved {report["kv_memory"]["reserved_bytes"]} bytes; {report["sequences"][0]["text"][:60]!r}')
PYTHON
    done
  done
}

# Many clients against a pool that is too small for them. A GPU is faster than the clients, so few of them fill its pool.
run_servers() {
  local soak=(python3 "$(dirname "$0")/server/server_soak.py" "$build" --device cuda --part 16)
  note "soak of step 3" step3_paged-soak.txt . "${soak[@]}" --step step3_paged --shared 100 --most-tokens 100
  note "soak of step 4" step4_prefix_cache-soak.txt . "${soak[@]}"
}

describe_machine
for part in "$@"; do
  case $part in
    tests | benchmarks | programs | servers) run_"$part" ;;
    sanitizers) run_sanitizers memcheck racecheck initcheck synccheck ;;
    memcheck | racecheck | initcheck | synccheck) run_sanitizers "$part" ;;
    *) echo "error: unknown part '$part'; known are tests, sanitizers (or one by its name), benchmarks, programs, servers" >&2; exit 2 ;;
  esac
done
exit $failed
