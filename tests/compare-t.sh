#!/bin/sh
# bench/compare runs ours and theirs in turn and makes one table of it; programs that fail, hang or
# are not finite have no time and take nobody else's. Both programs are stand-ins here.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
compare=$PWD/bench/compare # in the build folder, where it finds torch_dit.py beside its source

[ -z "${FP8PIPE_SANITIZER:-}" ] || skip_all "a table is the same in every build"
command -v python3 >/dev/null || skip_all "python3 is not there"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cd "$work" || exit 1

# Both note how they were called. Without a file for its numbers ours is only asked whether it runs.
# Ours takes 2 ms a sample, theirs 3; bf16 is not finite at batch 1.
cat >common <<'END'
echo "$0 $*" >>calls
cases=
while [ $# -gt 0 ]; do
    case $1 in
    --mode) mode=$2 ;;
    --dtype) dtype=$2 ;;
    --variant) variant=$2 ;;
    --batch_size) batch=$2 ;;
    --seq_length) cases="${batch}x$2" ;;
    --case) cases="$cases $2" ;;
    --json) json=$2 ;;
    esac
    shift
done
rows() {
    comma=
    for case in $cases; do
        batch=${case%x*}
        time=", \"ms_mean\": $((batch * $1)).25"
        [ "${dtype:-$variant} $batch" != "bf16 1" ] || time=
        echo "$comma {\"mode\": \"$mode\", \"case\": \"$case\", \"card\": \"a card\"$time,
            \"caller_cpu_ms\": 0.5, \"memory_bytes\": 2147483648}"
        comma=,
    done
}
END
cat >ours <<'END'
#!/bin/sh
case $* in
*--json*) ;;
*)
    echo "$*" >>asked
    [ ! -e no_gpu ] || { echo "dit_bench: no CUDA device" >&2; exit 2; }
    exit
    ;;
esac
. ./common
[ "$dtype" != fp32 ] || { echo "no memory for this" >&2; exit 1; }
echo "{\"rows\": [$(rows 2)]}" >"$json"
END
cat >theirs <<'END'
#!/bin/sh
[ -f "$1" ] && [ "${1##*/}" = torch_dit.py ] || { echo "$1 is not there" >&2; exit 1; }
shift
. ./common
[ "$variant" != te ] || { echo "No module named 'transformer_engine'" >&2; exit 2; }
[ "$variant" != torchao ] || exec sleep 60
echo "{\"rows\": [$(rows 3)]}" >"$json"
END
chmod +x ours theirs

run() {
    rm -f asked calls result.json
    python3 "$compare" --dit_bench ./ours --python ./theirs --json result.json "$@" >out 2>&1
}

# PATTERN: the output has such a line.
says() {
    grep -qE "$1" out || {
        cat out
        return 1
    }
}

json() {
    python3 -c "import json; r = json.load(open('result.json')); assert ($1), r"
}

calls_are() {
    sed 's/ .*--mode \([a-z]*\).*/ \1/' calls | tr '\n' ' ' | grep -qx "$1 " || {
        cat calls
        return 1
    }
}

ok "ours alone" run --mode train --case 8x240 --case 1x240 --peer none
ok "has a line for each of our types" says '^fp8pipe fp8  +16.25 +1.00 +0.50 +2.0 +2.25 +1.00 +0.50 +2.0$'
ok "not finite is no time" says '^fp8pipe bf16  +16.25 +1.00 +0.50 +2.0 +not finite *$'
ok "no peer runs" calls_are './ours train ./ours train ./ours train ./ours train'
ok "options of ours are passed on" grep -q -- '--dtype fp8 --tune --no_idle .*--iters 20' calls
ok "on CUDA" sh -c 'test "$(grep -c -- "ours --backend cuda" calls)" = 4'
ok "the file has all rows, the card and the command" json \
    "len(r['rows']) == 4 and r['card'] == 'a card' and '--peer none' in r['command'] and
     r['rows'][0]['name'] == 'fp8pipe fp8' and r['notes'] == []"

ok "ours and peers in turn" run --mode forward --case 8x240 --case 8x1024 --timeout 20 \
    --peer bf16 --peer te --iters 3 --common '--depth 2'
ok "ours comes first and last, a peer runs its cases in one process" calls_are \
    './ours forward ./ours forward ./ours forward ./ours forward ./theirs forward ./theirs forward ./ours forward ./ours forward'
ok "a peer's ratio is its time over ours" says '^torch bf16  +24.25 +1.49 '
ok "ours again at the end" says '^fp8pipe fp8 \(again\)  +16.25 +1.00 '
ok "a peer that cannot be imported is named with the reason" \
    says "^no time: forward, torch te: exit status 2: No module named 'transformer_engine'$"
ok "common options reach both" sh -c 'test "$(grep -c -- "--depth 2" calls)" = 8'
ok "what went wrong is in the file" json "len(r['notes']) == 1 and len(r['rows']) == 8"

ok "two modes make two tables" run --case 1x240 --peer none
ok "forward, with the units" says '^forward +1x240 ms +x ours +cpu ms +GiB$'
ok "train" says '^train +1x240 ms +x ours'

ok "a peer that hangs" run --mode train --case 1x240 --timeout 1 --peer torchao
ok "is stopped and named" says '^no time: train, torch torchao: .*timed out'

fails() {
    ! "$@"
}
ok "without any result it fails" fails run --mode train --case 8x240 --peer none \
    --ours 'fp32=--dtype fp32'
ok "and says what each run said" \
    says '^no time: train, fp8pipe fp32, 8x240: exit status 1: no memory for this$'

# STATUS OPTION...: it ends with this status and one line, and nothing was run.
ends() {
    status=$1
    shift
    run "$@"
    [ $? = "$status" ] && [ ! -e calls ] && [ "$(wc -l <out)" = 1 ] || {
        cat out
        return 1
    }
}
touch no_gpu
ok "without a CUDA device nothing is run" ends 1 --case 8x240 --peer bf16
ok "and it says why" says '^compare: dit_bench --backend cuda does not run here: no CUDA device$'
ok "nor where one of ours is for CUDA" ends 1 --ours 'host=--dtype fp8 --backend host' \
    --ours 'cuda=--dtype fp8'
ok "a backend that is named is not asked for another" run --case 8x240 --peer none \
    --common '--backend host'
ok "and is the only one named" sh -c '! grep cuda calls && test ! -e asked'
ok "nothing is to be tuned on the host" sh -c '! grep -e --tune calls'
rm no_gpu
ok "a program that is not there" ends 1 --dit_bench ./no_such_program

refused() {
    ends 2 "$@" && [ ! -e asked ]
}
ok "ours without options" refused --ours fp8 --peer none
ok "says what they must be" says "^compare: --ours is 'fp8', but must be NAME=OPTIONS"
ok "a case that is none" refused --case 8y240 --peer none
ok "says what it must be" says "^compare: --case is '8y240', but must be batch x sequence"
ok "shapes that change" refused --peer none --common=--dynamic
ok "says what they must be" says "^compare: --common is '--dynamic', but cases are fixed shapes"
for given in 'fp8=--dynamic --dtype fp8' 'fp8=--dtype fp8 --dynamic' 'fp8="--dynamic"'; do
    ok "of one of ours: $given" refused --peer none --ours 'bf16=--dtype bf16' --ours "$given"
    ok "says which" says "^compare: --ours is '$given', but cases are fixed shapes"
done
ok "a name may have any word" run --case 8x240 --peer none \
    --ours 'not --dynamic=--dtype fp8'
ok "a quote that stays open" refused --peer none --ours "fp8=--dtype 'fp8"
ok "is named" \
    says "^compare: --ours is 'fp8=--dtype 'fp8', which are no words .*: No closing quotation$"
ok "for both programs" refused --peer none --common '--depth "2'
ok "too" \
    says "^compare: --common is '--depth \"2', which are no words of a shell: .* quotation$"
ok "in a command" refused --peer none --dit_bench './ours "'
ok "too" says "^compare: --dit_bench is './ours \"', which are no words of a shell"
ok "a file that cannot be written" refused --peer none --json no_such_folder/x
ok "is named before anything runs" \
    says "^compare: --json is 'no_such_folder/x', which cannot be written: No such file"
echo kept >rows
ok "what is refused" refused --peer none --case 8y240 --json rows
ok "leaves the file as it was" grep -q kept rows
done_testing
