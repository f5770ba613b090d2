#!/bin/sh
# configure refuses the sources' folder by another name of it, where it would replace sources by
# links to themselves. No compiler is there, so that what is not refused ends soon as well.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

[ -z "${FP8PIPE_SANITIZER:-}" ] || skip_all "it is the same in every build"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/real/include" "$work/real/build" "$work/beside"
cp -L "$srcdir/configure" "$srcdir/configure.ac" "$work/real" || exit 1
cp -L "$srcdir/include/fp8pipe.h" "$work/real/include" || exit 1
cp -RL "$srcdir/build-aux" "$work/real" || exit 1
chmod -R u+w "$work" # the sources of distcheck are read-only
ln -s real "$work/link"

# FOLDER COMMAND PATTERN: it fails there, with such a line.
ends() {
    (cd "$work/$1" && CC=no_such_compiler "$2") >"$work/out" 2>&1 && return 1
    grep -qe "$3" "$work/out" || {
        cat "$work/out"
        return 1
    }
}

refused='^configure: error: this folder .* by another name, .*: type ./configure$'
compiler='^configure: error: C compiler cannot create executables'
ok "in place, by another name" ends link "$work/real/configure" "$refused"
ok "the other way round" ends real "$work/link/configure" "$refused"
ok "by a name from there" ends link ../real/configure "$refused"
ok "in place goes on" ends real ./configure "$compiler"
ok "by the whole name too" ends real "$work/real/configure" "$compiler"
ok "and where a link leads" ends link ./configure "$compiler"
ok "a folder inside goes on" ends real/build ../configure "$compiler"
ok "a folder beside too" ends beside "$work/link/configure" "$compiler"
done_testing
