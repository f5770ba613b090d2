dnl _FP8PIPE_ADD_FLAG(VARIABLE, FLAG): appends FLAG if the compiler takes it without a word.
AC_DEFUN([_FP8PIPE_ADD_FLAG], [
AC_MSG_CHECKING([whether $CC takes $2])
saved_CFLAGS=$CFLAGS
CFLAGS="-Werror $2 $CFLAGS"
AC_COMPILE_IFELSE([AC_LANG_SOURCE([[int fp8pipe_conftest;]])],
    [AC_MSG_RESULT([yes])
     AS_VAR_APPEND([$1], [" $2"])],
    [AC_MSG_RESULT([no])])
CFLAGS=$saved_CFLAGS
])

dnl FP8PIPE_WARNINGS
dnl Sets WARNING_CFLAGS, and DIALECT_CFLAGS: what the sources' meaning depends on.
AC_DEFUN([FP8PIPE_WARNINGS], [
AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [make compiler warnings errors])],
    [], [enable_werror=no])
WARNING_CFLAGS=
DIALECT_CFLAGS=
_FP8PIPE_ADD_FLAG([DIALECT_CFLAGS], [-std=gnu11])
dnl A multiply and an add fused on one machine only would give it other bits.
_FP8PIPE_ADD_FLAG([DIALECT_CFLAGS], [-ffp-contract=off])
m4_foreach_w([flag], [-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wold-style-definition -Wpointer-arith -Wwrite-strings -Wundef -Wvla -Wformat=2
    -Wimplicit-fallthrough],
    [_FP8PIPE_ADD_FLAG([WARNING_CFLAGS], flag)])
dnl A header that was forgotten, and what it leads to, is never only a warning.
m4_foreach_w([flag], [-Werror=implicit-function-declaration -Werror=int-conversion
    -Werror=incompatible-pointer-types],
    [_FP8PIPE_ADD_FLAG([WARNING_CFLAGS], flag)])
AS_IF([test "$enable_werror" = yes], [AS_VAR_APPEND([WARNING_CFLAGS], [" -Werror"])])
AC_SUBST([DIALECT_CFLAGS])
AC_SUBST([WARNING_CFLAGS])
])

dnl FP8PIPE_LINKER
dnl Sets VERSION_SCRIPT_LDFLAGS, DEFS_LDFLAGS (for the shared library), and localizes the static one
dnl where objcopy and ld can.
AC_DEFUN([FP8PIPE_LINKER], [
saved_LDFLAGS=$LDFLAGS
saved_CFLAGS=$CFLAGS

AC_MSG_CHECKING([whether the linker takes a version script])
AS_ECHO(["V { global: main; local: *; };"]) > conftest.map
LDFLAGS="$saved_LDFLAGS -Wl,--version-script=conftest.map"
AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes])
     VERSION_SCRIPT_LDFLAGS='-Wl,--version-script=$(srcdir)/lib/fp8pipe.map'],
    [AC_MSG_RESULT([no])
     VERSION_SCRIPT_LDFLAGS=])
rm -f conftest.map

dnl A sanitizer's runtime is found only when a program is linked.
DEFS_LDFLAGS=
AS_IF([test -z "$sanitizers"], [
    AC_MSG_CHECKING([whether the linker takes -z defs])
    LDFLAGS="$saved_LDFLAGS -Wl,-z,defs"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
        [AC_MSG_RESULT([yes])
         DEFS_LDFLAGS='-Wl,-z,defs'],
        [AC_MSG_RESULT([no])])])

LDFLAGS=$saved_LDFLAGS
CFLAGS=$saved_CFLAGS
AM_CONDITIONAL([LOCALIZE_ARCHIVE],
    [test "$enable_static" = yes && test -n "$OBJCOPY" && test "$with_gnu_ld" = yes])
AC_SUBST([VERSION_SCRIPT_LDFLAGS])
AC_SUBST([DEFS_LDFLAGS])
])
