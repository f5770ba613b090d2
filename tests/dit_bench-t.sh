#!/bin/sh
# examples/dit_bench runs in every data type, mode and backend, its gradients are the loss'
# derivatives, nothing is timed that was not finite, and what cannot be done is refused before it
# begins. On a GPU its kernels compute what their host twins do.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

bench=examples/dit_bench
[ -x "$bench" ] || skip_all "the example is not built here"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
OPENBLAS_NUM_THREADS=1
export OPENBLAS_NUM_THREADS

tiny="--batch_size 2 --hidden_size 32 --depth 2 --iters 3 --warmup 2"
small="--seq_length 12 $tiny"

# BACKEND OPTION...: a run of a small model; its JSON file is $work/json.
run() {
    backend=$1
    shift
    sizes=$small
    case " $* " in
    *' --dynamic '*) sizes=$tiny ;; # has shapes of its own
    esac
    # shellcheck disable=SC2086
    "$bench" --backend "$backend" $sizes --json "$work/json" "$@" >"$work/out" 2>"$work/err" ||
        { cat "$work/out" "$work/err"; return 1; }
}

number() {
    sed -n "s/^ *\"$1\": \\([-+.e0-9]*\\),*\$/\\1/p" "$work/json"
}

# NAME...: these numbers are in the file, above zero.
positive() {
    for name; do
        awk -v value="$(number "$name")" 'BEGIN { exit !(value > 0) }' ||
            { echo "$name is '$(number "$name")'"; cat "$work/json"; return 1; }
    done
}

timed() {
    run "$@" && positive ms_mean ms_median stream_ms_mean stream_ms_median first_ms ops memory_bytes
}

# Every aspect ratio comes three times, and all but the largest, whose tokens no other has, are new.
dynamic() {
    timed "$@" --dynamic --batch_size 1 --iters 36 &&
        positive first_at_shape_ms_median first_at_shape_ratio_median first_at_shape_ratio_worst &&
        [ "$(number first_at_shape_shapes)" = 5 ] &&
        grep -q 'first at a shape .* x the later ones; at worst .* tokens' "$work/out"
}

fixed() {
    timed "$@" && ! grep first_at_shape "$work/json" && ! grep 'first at' "$work/out"
}

trains() {
    timed "$@" --mode train && positive loss
}

# BOUND A B: two numbers, no further apart than the bound times the first.
near() {
    awk -v bound="$1" -v a="$2" -v b="$3" 'BEGIN {
        apart = a > b ? a - b : b - a
        exit !(a > 0 && b > 0 && apart <= bound * a)
    }' || { echo "$2 and $3 are further apart than $1 of the first"; return 1; }
}

# BOUND "OPTION..." "OPTION...": two training runs end at nearly the same loss.
same_loss() {
    # shellcheck disable=SC2086
    trains $2 || return 1
    first=$(number loss)
    # shellcheck disable=SC2086
    trains $3 || return 1
    near "$1" "$first" "$(number loss)"
}

# NAME...: these numbers are in the file, and zero.
zero() {
    for name; do
        [ "$(number "$name")" = 0 ] || { echo "$name is '$(number "$name")'"; return 1; }
    done
}

replays() {
    timed "$@" --iters 20 && positive replays replayed && [ -n "$(number replays_evicted)" ] &&
        grep -q 'GEMM calls replayed .* issued from .* records' "$work/out"
}

no_replays() {
    timed "$@" && zero replays replays_evicted replayed
}

refused() {
    pattern=$1
    shift
    "$bench" "$@" >"$work/out" 2>"$work/err"
    [ $? = 2 ] && grep -q -- "$pattern" "$work/err" && [ ! -s "$work/out" ] ||
        { cat "$work/out" "$work/err"; return 1; }
}

valid_json() {
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1"
}

# Its weights grow beyond all bounds.
not_finite() {
    # shellcheck disable=SC2086
    "$bench" --backend "$1" $small --lr 1 --depth 12 --json "$work/json" >"$work/out" 2>"$work/err"
    [ $? = 1 ] && grep -q 'not finite' "$work/out" && ! grep -q ' ms' "$work/out" &&
        grep -q '"finite": false' "$work/json" && ! grep -q '_ms\|ms_' "$work/json" ||
        { cat "$work/out" "$work/err" "$work/json"; return 1; }
}

losses() {
    run "$1" --loss_run 30 --lr 1e-3 && positive loss && grep -q 'mean loss' "$work/out"
}

cosines() {
    run "$1" --cosine && positive cosine_median &&
        awk -v value="$(number cosine_median)" 'BEGIN { exit !(value > 0.98 && value < 1) }' ||
        { cat "$work/out"; return 1; }
}

# ---- Every backend -------------------------------------------------------------------------------

backend_tests() {
    b=$1
    ok "$b: gradients are the loss' derivatives" run "$b" --dtype fp32 --check
    for dtype in fp32 bf16 fp8; do
        ok "$b: forward in $dtype" timed "$b" --dtype $dtype --mode forward
        ok "$b: training in $dtype" trains "$b" --dtype $dtype
    done
    ok "$b: float32 weight gradients" same_loss 1e-3 "$b --dtype fp8" \
        "$b --dtype fp8 --grad_dtype fp32"
    ok "$b: a lane for weight gradients changes nothing" same_loss 0 \
        "$b --fixed_plans --lanes 1" "$b --fixed_plans --lanes 2"
    ok "$b: issuing inline changes nothing" same_loss 0 \
        "$b --fixed_plans" "$b --fixed_plans --issue inline --lanes 2"
    ok "$b: a norm in every step changes nothing" same_loss 0 \
        "$b --fixed_plans" "$b --fixed_plans --grad_norm"
    ok "$b: GEMM calls that are not replayed change nothing" same_loss 0 \
        "$b --fixed_plans" "$b --fixed_plans --no_replays"
    ok "$b: none of them is counted" no_replays "$b" --no_replays
    ok "$b: bf16 is near float32" same_loss 1e-2 "$b --dtype fp32" "$b --dtype bf16"
    ok "$b: FP8 is near float32" same_loss 2e-2 "$b --dtype fp32" "$b --dtype fp8"
    ok "$b: sizes that fit no alignment" timed "$b" --batch_size 1 --seq_length 3 --hidden_size 24 \
        --mlp_ratio 7
    ok "$b: another shape each iteration" dynamic "$b"
    ok "$b: in forwards alone too" dynamic "$b" --mode forward
    ok "$b: nothing is the first at a fixed shape" fixed "$b"
    ok "$b: the floor" run "$b" --floor
    ok "$b: the floor's numbers" positive floor_ms over_floor copy_bytes_per_s
    ok "$b: losses on fresh batches" losses "$b"
    ok "$b: FP8's weight gradients point where bf16's do" cosines "$b"
    ok "$b: no time for a run that is not finite" not_finite "$b"
}

backend_tests host
# CUDA where it is; without it the run is refused, and the sentence says which backend.
if [ "${FP8PIPE_TEST_BACKEND:-}" != host ] &&
    { [ "${FP8PIPE_TEST_REQUIRE_GPU:-}" = 1 ] || run cuda --mode forward >"$work/why"; }; then
    backend_tests cuda
    ok "cuda computes what the host does in fp32" same_loss 1e-4 "host --dtype fp32" \
        "cuda --dtype fp32"
    ok "cuda computes what the host does in bf16" same_loss 2e-3 "host --dtype bf16" \
        "cuda --dtype bf16"
    ok "cuda computes what the host does in fp8" same_loss 1e-2 "host --dtype fp8" \
        "cuda --dtype fp8"
    ok "GEMM calls that come again are replayed" replays cuda
    ok "tuned GEMMs are written" run cuda --tune --tune_file "$work/tuned"
    ok "and loaded" run cuda --tune_file "$work/tuned"
else
    skip "no GPU"
fi

# ---- Files ---------------------------------------------------------------------------------------

ok "a profile" run host --profile "$work/trace"
if command -v python3 >/dev/null; then
    ok "the report is JSON" valid_json "$work/json"
    ok "the profile is JSON" valid_json "$work/trace"
else
    skip "python3 is not there"
fi

# ---- Refused -------------------------------------------------------------------------------------

ok "help" "$bench" --help
ok "an unknown option" refused 'not an option' --fast
ok "an option without its value" refused 'needs a value' --depth
ok "a number out of range" refused "depth is '0'" --depth 0
ok "a number with something behind it" refused "iters is '3x'" --iters 3x
ok "a width that is no multiple of 8" refused "hidden_size is '12'" --hidden_size 12
ok "an unknown choice" refused 'one of forward train' --mode eval
ok "a profile of losses" refused '--profile, --floor and --tune need' --loss_run 3 --profile p
ok "GEMMs tuned for losses" refused '--profile, --floor and --tune need' --loss_run 3 --tune
ok "GEMMs tuned on the host" refused '--tune needs the cuda backend' --backend host --tune
ok "GEMMs tuned on the host, which was chosen by the pipe" env FP8PIPE_BACKEND=host sh -c \
    '"$1" --tune 2>&1 | grep -e "--tune needs the cuda backend"' sh "$bench"
ok "tuned GEMMs for the host" refused '--tune_file needs the cuda backend' --backend host \
    --tune_file "$work/json"
ok "one length of shapes that change" refused "seq_length is '240', but --dynamic" --dynamic \
    --seq_length 240
ok "a check in FP8" refused 'check needs --dtype fp32' --check
ok "losses of a forward pass" refused 'loss_run needs' --mode forward --loss_run 10
ok "bf16 gradients of a float32 model" refused 'grad_dtype' --dtype fp32 --grad_dtype bf16
ok "too many tokens" refused 'at most 16384' --batch_size 65536
ok "a learning rate of zero" refused "lr is '0'" --lr 0
ok "a profile that cannot be written" refused 'cannot be written' --profile "$work/no/trace"
ok "a report that cannot be written" refused 'cannot be written' --json "$work/no/json"
ok "sizes that do not fit" refused 'need .* GiB of memory, but host has .* GiB free' \
    --backend host --batch_size 65536 --seq_length 256
done_testing
