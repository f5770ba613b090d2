#!/bin/sh
# bench/plot draws each figure from its kind of result, and does without what is missing or broken.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
plot=$(cd "$srcdir/bench" && pwd)/plot

[ -z "${FP8PIPE_SANITIZER:-}" ] || skip_all "a figure is the same in every build"
command -v python3 >/dev/null || skip_all "python3 is not there"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cd "$work" || exit 1
mkdir results out none
export MPLCONFIGDIR="$work"

# A matplotlib that cannot be imported stands in for one that is not there.
echo 'raise ImportError("No module named matplotlib")' >none/matplotlib.py
without_matplotlib() {
    PYTHONPATH=none python3 "$plot" --results results --out out >report 2>&1
    [ $? = 1 ] && [ "$(wc -l <report)" = 1 ] && grep -q 'pip install matplotlib' report || {
        cat report
        return 1
    }
}
ok "without matplotlib it says what to install, in one sentence" without_matplotlib
if ! python3 -c 'import matplotlib' 2>/dev/null; then
    skip "matplotlib is not there"
    done_testing
    exit
fi

draw() {
    python3 "$plot" --results results --out out "$@" >report 2>&1 || {
        cat report
        return 1
    }
}

says() {
    grep -q "$1" report || {
        cat report
        return 1
    }
}

ok "without results there is nothing to draw" draw
ok "which is said" says '^train: no result$'
none "and nothing is written" ls out

cat >results/submit.json <<'END'
{"machine": "a card", "date": "2026-01-02", "backend": "cuda", "submits": [
 {"name": "forward, 1 caller", "median_ns": 152, "p99_ns": 470, "longest_ns": 44637},
 {"name": "forward, INLINE", "median_ns": 13201, "p99_ns": 26232, "longest_ns": 181766},
 {"name": "broken", "median_ns": "?"}]}
END
cat >results/older.json <<'END'
{"machine": "another", "date": "2026-01-01", "backend": "host", "submits": []}
END
cat >results/compare.json <<'END'
{"card": "a card", "date": "2026-01-02", "command": "bench/compare", "rows": [
 {"name": "fp8pipe fp8", "mode": "forward", "case": "8x1024", "turn": 0, "ms_mean": 37.5},
 {"name": "fp8pipe fp8", "mode": "forward", "case": "1x240", "turn": 0, "ms_mean": 2.5},
 {"name": "torch bf16", "mode": "forward", "case": "8x1024", "turn": 0, "ms_mean": 71.2},
 {"name": "torch te", "mode": "forward", "case": "8x1024", "turn": 0},
 {"name": "fp8pipe fp8", "mode": "forward", "case": "8x1024", "turn": 1, "ms_mean": 37.6}]}
END
echo 'not JSON' >results/broken.json
echo '[1, 2]' >results/list.json
ok "results of some kinds are drawn" draw
ok "in files of their own" test -s out/caller_cost.png -a -s out/forward.png
ok "those without a row are not" test ! -e out/train.png -a ! -e out/kernels.png
ok "what is not JSON is named" says 'broken.json: left out'
ok "and so is what is no result" says 'list.json: left out'

cat >results/short.json <<'END'
{"card": "a card", "date": "2026-01-03", "rows": [
 {"name": "fp8pipe fp8", "case": "8x240", "forward_ms": 9.9, "train_ms": 55},
 {"name": "torch bf16", "case": "8x240", "forward_ms": 17.9, "train_ms": 90}]}
END
cat >results/kernels.json <<'END'
{"device": "a card", "date": "2026-01-03", "kernels": [
 {"kernel": "quantize", "mib": 32, "bytes": 50331648, "us": 15.0, "gb_s": 3300.0, "of_copy": 0.92},
 {"kernel": "quantize", "mib": 128, "bytes": 201326592, "us": 50.0, "gb_s": 4000.0,
  "of_copy": 0.98}]}
END
ok "every kind is drawn" draw --format svg
ok "as SVG too" test -s out/caller_cost.svg -a -s out/forward.svg -a -s out/train.svg \
    -a -s out/kernels.svg
ok "a text of the latest result is in its figure" grep -q 'svg' out/train.svg
cp out/kernels.svg before.svg
ok "again" draw --format svg
ok "the same results give the same figure" cmp before.svg out/kernels.svg
ok "a folder that cannot be written is an error" \
    sh -c "! python3 '$plot' --results results --out '$work/nowhere' >/dev/null 2>&1"
done_testing
