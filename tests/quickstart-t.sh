#!/bin/sh
# quickstart takes its option in any place, refuses what it does not know before it sets anything
# up, and sees sources that were configured in place. All that it would run is a stand-in here.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
quickstart=$(cd "$srcdir" && pwd)/quickstart

[ -z "${FP8PIPE_SANITIZER:-}" ] || skip_all "it is the same in every build"
command -v bash >/dev/null || skip_all "bash is not there"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/bin" "$work/tree/build-aux" && cd "$work/tree" || exit 1
cp "$quickstart" quickstart
touch Makefile.in build-aux/ltmain.sh configure.ac
mkdir m4

stand_in() {
    cat >"$1"
    chmod +x "$1"
}
for program in apt-get make prove autoreconf nvcc; do
    stand_in "$work/bin/$program" <<'END'
#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
END
done
stand_in "$work/bin/dpkg-query" <<'END'
#!/bin/sh
echo installed
END
stand_in configure <<'END'
#!/bin/sh
echo "configure $*" >>"$CALLS"
touch config.status
echo '  libfp8pipe' >config.log; cp config.log configure.log
mkdir -p examples
printf '#!/bin/sh\necho "run $*" >>"$CALLS"\n' >run
cp run examples/dit_digits
chmod +x run examples/dit_digits
END
CALLS=$work/calls
PATH=$work/bin:$PATH
export CALLS PATH
unset FP8PIPE_QUICKSTART_CUDA

# The status is kept, and what was run is in $CALLS.
run() {
    rm -rf build "$CALLS"
    : >"$CALLS"
    ./quickstart "$@" >out 2>err
}

# PATTERN FILE
has() {
    grep -qe "$1" "$2" || {
        cat "$2" out err
        return 1
    }
}

ok "help" run --help
ok "names the option" has '--without-cuda, before or behind the command' out
ok "and where a folder is" has 'taken from the$' out
for words in "-h" "check --help" "build --help" "build -h" "build other --help" \
    "--without-cuda build --help"; do
    # shellcheck disable=SC2086
    ok "$words" run $words
    ok "is the same text" has '^usage: ./quickstart demo' out
    ok "and nothing is begun" sh -c '[ ! -s "$CALLS" ] && [ ! -e build ]'
done
ok "help of the demo" run demo --help
ok "is its own" has '^run .*/examples/dit_digits --help$' "$CALLS"
ok "a check" run check
ok "is configured by itself" has '^configure *$' "$CALLS"
ok "and run by prove" has '^prove ' "$CALLS"
for words in "--without-cuda check" "check --without-cuda" "build --without-cuda" \
    "build build --without-cuda" "demo --without-cuda --steps 5" "demo --steps 5 --without-cuda"; do
    # shellcheck disable=SC2086
    ok "$words" run $words
    ok "is configured so" has '^configure --without-cuda$' "$CALLS"
done
ok "the rest goes to the demo" has '^run .*/examples/dit_digits --steps 5$' "$CALLS"
by_environment() {
    (
        export FP8PIPE_QUICKSTART_CUDA=no
        run "$@"
    )
}
ok "the environment says the same" by_environment build
ok "to configure too" has '^configure --without-cuda$' "$CALLS"
ok "in another folder too" run build other
ok "which is there" test -f other/config.status

# SENTENCE WORD...: status 2, and nothing was begun.
refused() {
    sentence=$1
    shift
    run "$@"
    [ $? = 2 ] && [ ! -s "$CALLS" ] && [ ! -e build ] && has "^quickstart: $sentence" err
}
ok "an unknown option" refused '--fast is not an option' --fast check
ok "an unknown command" refused 'chek is not a command' chek
ok "an argument of check" refused 'check takes no argument, and here is --fast' check --fast
ok "an option in place of the folder" refused '--fast is no option of build' build --fast
ok "two folders" refused 'build takes one folder, and here is b' build a b

touch config.status
in_place() {
    run "$@"
    [ $? = 1 ] && [ ! -s "$CALLS" ] && [ ! -e build ] && has 'configured in their own folder' err &&
        has 'make distclean' err
}
ok "sources that are configured in place are not built elsewhere" in_place check
ok "in no other folder" in_place build other
ok "but in place" run build .
done_testing
