#!/bin/sh
# What the documents say is there: the README's program, the man pages' declarations, every file,
# command, option and name that they mention.
set -u
LC_ALL=C
export LC_ALL
srcdir=${srcdir:-.}
. "$srcdir/tests/tap.sh"
cd "$srcdir" || exit 1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

headers='include/fp8pipe.h include/fp8pipe_tensor.h include/fp8pipe_linear.h
    include/fp8pipe_cuda.h include/fp8pipe_fused.h include/fp8pipe_optimizer.h
    include/fp8pipe_trace.h include/fp8pipe_tune.h'
texts='README.md CHANGELOG.md doc/*.md'
pages=$(grep -L '^\.so ' doc/man/*.3)
sources='include lib kernels tests build-aux m4 examples bench quickstart configure.ac Makefile.am'

# ---- The README's program ------------------------------------------------------------------------

# The first C block, and the example without a comment of licence before its first line of code.
awk '/^```c$/ { inside = 1; next } inside && /^```$/ { exit } inside' README.md >"$work/readme.c"
sed -n '/^#include/,$p' examples/hello.c >"$work/hello.c"
ok "the README shows examples/hello.c" diff "$work/hello.c" "$work/readme.c"

# ---- Declarations: one a line, without comments, directives and needless spaces ------------------

without_comments() {
    awk '{
        line = ""
        while ($0 != "") {
            at = index($0, comment ? "*/" : "/*")
            if (at == 0) {
                if (!comment) line = line $0
                break
            }
            if (!comment) line = line substr($0, 1, at - 1) " "
            $0 = substr($0, at + 2)
            comment = !comment
        }
        print line
    }' "$@"
}

declarations() {
    without_comments "$@" | awk '
        /^[[:space:]]*#/ || directive { directive = /\\[[:space:]]*$/; next }
        /^extern "C" \{$/ || /^\}$/ { next }
        { text = text " " $0 }
        END {
            count = split(text, part, "")
            for (i = 1; i <= count; i++) {
                one = one part[i]
                depth += (part[i] == "{") - (part[i] == "}")
                if (part[i] == ";" && depth == 0) {
                    gsub(/[[:space:]]+/, " ", one)
                    while (match(one, / [][(){},;*=]|[][(){},;*=] /))
                        one = substr(one, 1, RSTART - 1) \
                            substr(one, RSTART + (substr(one, RSTART, 1) == " "), 1) \
                            substr(one, RSTART + 2)
                    sub(/FP8PIPE_API /, "", one)
                    sub(/^ /, "", one)
                    print one
                    one = ""
                }
            }
        }' | sort -u
}

# A page's prototypes and literal blocks as C.
page_code() {
    awk '
        /^\.Ft / { sub(/^\.Ft /, ""); gsub(/"/, ""); type = $0; next }
        /^\.Fo / { code = type " " $2 "("; comma = ""; inside = 1; next }
        /^\.Fa / && inside { sub(/^\.Fa /, ""); gsub(/"/, ""); code = code comma $0; comma = ","; next }
        /^\.Fc/ { print code ");"; inside = 0; next }
        /^\.Bd -literal/ { literal = 1; next }
        /^\.Ed/ { literal = 0; print ";"; next }
        literal' "$1"
}

# shellcheck disable=SC2086
declarations $headers >"$work/all"
# Left out: types without a body, and the statuses, whose names are checked below.
grep -vE '^struct [a-zA-Z0-9_]+;$|^enum fp8pipe_status\{' "$work/all" >"$work/declared"
for page in $pages; do
    page_code "$page" >"$work/page.c"
    declarations "$work/page.c"
done | sort -u >"$work/documented"
ok "the headers declare something" test -s "$work/declared"
none "every declaration stands in a man page as in the header" \
    comm -23 "$work/declared" "$work/documented"
grep -E '^[^={]*[ *]fp8pipe_[a-z0-9_]+\([^{]*\);$|^(struct|enum) fp8pipe_[a-z0-9_]*\{' \
    "$work/documented" | grep -v '^return' >"$work/stated"
headers_without_page() {
    for header in include/*; do
        # shellcheck disable=SC2086
        grep -q "^\\.In $(basename "$header")\( [,.;]\)\{0,1\}\$" $pages || case $header in
        # parts of fp8pipe_quantize.cuh
        */fp8pipe_operand.cuh | */fp8pipe_codes.cuh | */fp8pipe_quantize_*.cuh) ;;
        *) echo "$header" ;;
        esac
    done
}
none "every header that is for users is in a man page" headers_without_page
none "no man page declares what the headers do not" comm -13 "$work/declared" "$work/stated"

# ---- A page for each function --------------------------------------------------------------------

functions() {
    sed -n 's/^[^({]*[ *]\(fp8pipe_[a-z0-9_]*\)(.*;$/\1/p' "$work/declared" |
        grep -vxF "$(sed -n 's/^typedef.*[ *]\(fp8pipe_[a-z0-9_]*\)(.*/\1/p' "$work/declared")" |
        sort -u
}

# The page that `man NAME` shows: its own, or the one that it stands for.
without_page() {
    functions | while read -r name; do
        page=doc/man/$name.3
        if [ ! -f "$page" ]; then
            echo "$name has no doc/man/$name.3"
            continue
        fi
        target=$(sed -n 's/^\.so man3\///p' "$page")
        [ -z "$target" ] || page=doc/man/$target
        grep -q "^\\.Fo $name\$" "$page" && grep -q "^\\.Nm $name\\( ,\\)\\{0,1\\}\$" "$page" ||
            echo "$page does not describe $name"
    done
}

idle_pages() {
    functions >"$work/functions"
    for page in doc/man/*.3; do
        name=$(basename "$page" .3)
        grep -q '^\.so ' "$page" && ! grep -qx "$name" "$work/functions" &&
            echo "$page is for no function"
    done
}

broken_references() {
    grep -H '^\.Xr fp8pipe' doc/man/*.3 | while IFS=': ' read -r page _ name _; do
        [ -f "doc/man/$name.3" ] || echo "$page refers to $name(3)"
    done
}

ok "there are functions" test -n "$(functions)"
none "every function has a man page" without_page
none "every short page is for a function" idle_pages
none "references between pages lead somewhere" broken_references

# Statuses come from the header's table, whose entries have no prefix.
constants() {
    {
        # shellcheck disable=SC2086
        grep -ohE 'FP8PIPE_[A-Z0-9_]+' $headers
        sed -n 's/^ *X(\([A-Z]*\), [0-9]*, ".*/FP8PIPE_\1/p' include/fp8pipe.h
    } | sort -u | grep -vxE 'FP8PIPE_(([A-Z]+_)?H|API|STATUS_TABLE|STATUS_ENUM|)'
}

undocumented() {
    # shellcheck disable=SC2086
    cat $pages | grep -oE 'FP8PIPE_[A-Z0-9_]+' | sort -u >"$work/mentioned"
    constants | comm -23 - "$work/mentioned"
}

none "every constant of the headers is in a man page" undocumented

if command -v groff >/dev/null && groff -mandoc -Tutf8 doc/man/fp8pipe.3 2>/dev/null | grep -q .; then
    page_warnings() {
        for page in $pages; do
            groff -mandoc -Tutf8 -ww "$page" 2>&1 >/dev/null
        done
    }
    none "the pages format without a warning" page_warnings
else
    skip "no groff with -mandoc on this machine"
fi

# ---- What the texts mention ----------------------------------------------------------------------

# shellcheck disable=SC2086
cat $texts $pages | grep -v '^\.Dt ' | tr '`()<>"' '      ' | sed 's/\\-/-/g' >"$work/plain"

# What is to be typed: blocks of code, and code in the text.
# shellcheck disable=SC2086
awk '
    /^```/ { inside = !inside; next }
    inside { print; next }
    { for (i = split($0, part, "`"); i > 1; i--) if (i % 2 == 0) print part[i] }' $texts >"$work/code"

# FILE PATTERN: the matches, without the punctuation that follows them.
words() {
    grep -oE "$2" "$work/$1" | sed 's/^[[:space:]]*//; s/[.,:;]*$//' | sort -u
}

# `x.[ch]` stands for x.c and x.h, a * for at least one file. Programs are built from their source.
missing_files() {
    words plain '(^|[[:space:][])(\./)?(lib|kernels|include|tests|examples|bench|doc|build-aux|m4)/[][A-Za-z0-9_./*-]*' |
        sed 's/^\[//; s/\(.*\)\.\[ch]$/\1.c\n\1.h/; s/\].*$//' | sort -u |
        while read -r path; do
            # shellcheck disable=SC2086
            ls -d $path >/dev/null 2>&1 || [ -f "$path.c" ] || echo "$path"
        done
    for text in $texts; do
        grep -oE '\]\([^)#]+' "$text" | sed 's/^](//' | grep -v '://' | while read -r path; do
            [ -e "$(dirname "$text")/$path" ] || echo "$path, a link of $text"
        done
    done
}

unknown_commands() {
    words code '\./quickstart +[a-z]+' | sed 's/.* //' | while read -r command; do
        grep -qE "^(${command}|[a-z |]*[| ]${command}[a-z |-]*)\\)" quickstart ||
            echo "./quickstart $command"
    done
    words code '(^|[[:space:]])make +[a-z]+' | sed 's/.* //' | while read -r target; do
        case $target in
        all | check | clean | dist | distcheck | install | uninstall) ;;
        *) grep -q "^$target:" Makefile.am || echo "make $target" ;;
        esac
    done
}

# A command holds in the folder of the sources, or in any build folder.
leaving_commands() {
    words code '(^|[[:space:]])(\.\./)+[^[:space:]]*' | grep -v '/configure$'
}

# Options of configure are long, and so are those of programs in their help.
unknown_options() {
    words code '(^|[[:space:]])--(with|without|enable|disable)-[a-z-]+' |
        sed 's/^--\(without\|with\|enable\|disable\)-//' | sort -u |
        while read -r option; do
            case $option in
            shared | static) ;;
            *) cat configure.ac m4/*.m4 | grep -qE "AC_ARG_(WITH|ENABLE)\\(\\[$option\\]" ||
                echo "$option" ;;
            esac
        done
}

# Names of functions, types, constants and variables of the environment.
unknown_names() {
    # shellcheck disable=SC2086
    grep -rohIE '[fF][pP]8[pP][iI][pP][eE]_[A-Za-z0-9_]+' $sources | sort -u >"$work/known"
    sed -n 's/^ *X(\([A-Z]*\), [0-9]*, ".*/FP8PIPE_\1/p' include/fp8pipe.h >>"$work/known"
    ls doc/man | sed 's/\.3$//' >>"$work/known"
    sort -u -o "$work/known" "$work/known"
    words plain '(fp8pipe_[a-z0-9_]*[a-z0-9]|FP8PIPE_[A-Z0-9_]*[A-Z0-9])' | sort -u |
        comm -23 - "$work/known"
}

none "every file that is mentioned is there" missing_files
none "every command that is mentioned is there" unknown_commands
none "no command is one of a build folder that lies in some place" leaving_commands
none "every option of configure that is mentioned is there" unknown_options
none "every name that is mentioned is there" unknown_names

# Columns and not bytes: the bytes that continue a character do not count. Tables cannot be wrapped.
long_lines() {
    # shellcheck disable=SC2086
    for text in $texts doc/man/*.3 include/*; do
        tr -d '\200-\277' <"$text" |
            awk -v text="$text" '!/^\|/ && length > 100 { print text ":" NR ": " length " columns" }'
    done
}

# Paths of some machine, and words of unfinished work.
unwanted() {
    # shellcheck disable=SC2086
    grep -nE '(^|[^A-Za-z0-9.])/(work|tmp|root|home|mnt)/|TODO|FIXME|XXX|TBD' $texts doc/man/*.3
}

none "no line is longer than 100 columns" long_lines
none "no text has a path of one machine or a word of unfinished work" unwanted
done_testing
