#!/bin/sh
# What `make install` puts down is enough for a user, exports the public API and nothing else, and
# is gone after `make uninstall`.
set -u
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"

[ -z "${FP8PIPE_SANITIZER:-}" ] || skip_all "a sanitizer's build is not installed"
[ -f libfp8pipe.la ] || skip_all "the library is not built here"
case $(pwd -P) in
*[[:space:]]*) skip_all "make install cannot work in a folder whose path has a space" ;;
esac

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$stage/root" "$stage/lists"

# A make of its own: not a part of the one that may run this test.
fresh_make() {
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS "${MAKE:-make}" -s "$@" DESTDIR="$stage/root"
}

ok "make install with DESTDIR" fresh_make install
library=$(find "$stage/root" -name libfp8pipe.la -exec dirname {} \;)
include=$(find "$stage/root" -name fp8pipe.h -exec dirname {} \;)

# The prefix is not where the files lie now, so say where they do.
pkgconfig() {
    PKG_CONFIG_PATH=$library/pkgconfig pkg-config --define-variable=libdir="$library" \
        --define-variable=includedir="$include" "$@" fp8pipe
}

# ---- What is exported ----------------------------------------------------------------------------

# Every function that the installed headers declare.
declared() {
    cat "$include"/fp8pipe*.h | tr '\n' ' ' | grep -o 'FP8PIPE_API [^(;]*(' |
        grep -o 'fp8pipe_[a-z0-9_]*($' | tr -d '(' | sort -u
}

# Names without their version; the version node itself is an absolute symbol.
exported_shared() {
    nm -D --defined-only "$library/libfp8pipe.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u
}

exported_static() {
    nm -g --defined-only "$library/libfp8pipe.a" | awk 'NF == 3 { print $3 }' | sort -u
}

declared >"$stage/lists/declared"
ok "the headers declare functions" test -s "$stage/lists/declared"
for kind in shared static; do
    case $kind in
    shared) file=$library/libfp8pipe.so ;;
    static) file=$library/libfp8pipe.a ;;
    esac
    if [ ! -f "$file" ]; then
        skip "no $kind library in this build"
        continue
    fi
    exported_$kind >"$stage/lists/$kind"
    none "the $kind library exports no other name than fp8pipe_*" \
        grep -v '^fp8pipe_' "$stage/lists/$kind"
    none "the $kind library has every function that the headers declare" \
        comm -23 "$stage/lists/declared" "$stage/lists/$kind"
done

if [ -f "$library/libfp8pipe.so" ]; then
    readelf -d "$library/libfp8pipe.so" >"$stage/lists/dynamic"
    none "the shared library has no rpath" grep -E 'RPATH|RUNPATH' "$stage/lists/dynamic"
    none "the shared library needs nothing of CUDA's or C++'s" \
        grep -E 'NEEDED.*(libcuda|libcublas|libstdc)' "$stage/lists/dynamic"
    if grep -q 'l:libck\.a' "$library/libfp8pipe.la"; then
        none "the shared library brings its Concurrency Kit" \
            grep -E 'NEEDED.*libck' "$stage/lists/dynamic"
    fi
fi

# ---- The headers ---------------------------------------------------------------------------------

headers=$(cd "$srcdir/include" && ls)

missing_headers() {
    for header in $headers; do
        [ -f "$include/$header" ] || echo "$header"
    done
}

# COMPILER OPTION...: each header of C by itself, but the one that needs CUDA's.
compile_headers() {
    for header in $headers; do
        case $header in *.cuh) continue ;; esac
        echo "#include <$header>" | "$@" -Wall -Wextra -Wpedantic -Werror -I"$include" \
            -fsyntax-only - || return
    done
}

none "every public header is installed" missing_headers
ok "each header compiles as C11" compile_headers gcc -std=c11 -x c
if command -v g++ >/dev/null; then
    ok "each header compiles as C++11" compile_headers g++ -std=c++11 -x c++
else
    skip "no g++ on this machine"
fi

# The functor of fp8pipe_quantize.cuh's man page, in a program of C++17.
try_functor() {
    {
        echo '#include <fp8pipe_quantize.cuh>'
        awk '/^\.Bd -literal/ { inside = 1; next } /^\.Ed/ { exit } inside' \
            "$srcdir/doc/man/fp8pipe_quantize.3"
        cat <<'END'
struct operands {
    fp8pipe_matrix x, shift, scale;
};
extern "C" enum fp8pipe_status enqueue(struct fp8pipe_stream *stream,
                                       const struct fp8pipe_quantize_target *target, void *arg)
{
    const struct operands *o = (const struct operands *)arg;

    return quantize(stream, target,
                    modulated{operand<FP8PIPE_BF16>::of(o->x, "x"),
                              operand<FP8PIPE_BF16>::of(o->shift, "shift"),
                              operand<FP8PIPE_BF16>::of(o->scale, "scale")});
}
END
    } >"$stage/lists/functor.cu"
    "$nvcc" -std=c++17 -arch=sm_90 -Werror all-warnings -Xcompiler -Wall,-Wextra -I"$include" \
        -c "$stage/lists/functor.cu" -o "$stage/lists/functor.o" && nm "$stage/lists/functor.o" |
        grep -q ' T enqueue$'
}

nvcc=${NVCC:-$(command -v nvcc)}
if [ -n "$nvcc" ]; then
    ok "the functor of fp8pipe_quantize.cuh's page compiles" try_functor
    # Two files that are compiled for different architectures may have functors of one name.
    none "whether its kernels wait is found out for each file by itself" \
        sh -c 'nm "$1" | grep -E " [uVvWw] .*may_begin_early"' sh "$stage/lists/functor.o"
else
    skip "no nvcc on this machine"
    skip "no nvcc on this machine"
fi

# ---- The README's program ------------------------------------------------------------------------

awk '/^```c$/ { inside = 1; next } inside && /^```$/ { exit } inside' "$srcdir/README.md" \
    >"$stage/lists/readme.c"
ok "the README shows a C program" grep -q 'main(' "$stage/lists/readme.c"

# COMPILER KIND: builds and runs the program with what pkg-config says and nothing else.
try_program() {
    case $2 in
    shared) flags=$(pkgconfig --cflags --libs) ;;
    static) flags=$(pkgconfig --static --cflags --libs | sed 's/-lfp8pipe\>/-l:libfp8pipe.a/') ;;
    esac
    # shellcheck disable=SC2086
    "$1" -Wall -Wextra -Werror "$stage/lists/readme.c" -o "$stage/lists/readme" $flags || return
    ! readelf -d "$stage/lists/readme" | grep -E 'RPATH|RUNPATH' || return
    [ "$2" = shared ] || ! readelf -d "$stage/lists/readme" | grep 'NEEDED.*libfp8pipe' || return
    LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$stage/lists/readme"
}

if command -v pkg-config >/dev/null; then
    ok "pkg-config knows the version" test "$(pkgconfig --modversion)" = \
        "$(sed -n 's/^#define FP8PIPE_VERSION_[A-Z]* //p' "$include/fp8pipe.h" | paste -sd.)"
    for compiler in gcc g++ clang; do
        for kind in shared static; do
            case $kind in
            shared) file=$library/libfp8pipe.so ;;
            static) file=$library/libfp8pipe.a ;;
            esac
            if ! command -v $compiler >/dev/null; then
                skip "no $compiler on this machine"
            elif [ ! -f "$file" ]; then
                skip "no $kind library in this build"
            else
                ok "the README's program, $compiler, $kind" try_program $compiler $kind
            fi
        done
    done
else
    skip "no pkg-config on this machine"
fi

# ---- Uninstall -----------------------------------------------------------------------------------

ok "make uninstall" fresh_make uninstall
none "make uninstall leaves no file" find "$stage/root" ! -type d
done_testing
