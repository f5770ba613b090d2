dnl FP8PIPE_CK
dnl Concurrency Kit with its event counts (0.7 or later). Its static library goes into ours, so that
dnl whoever uses libfp8pipe.so needs no CK; where there is only a shared one, that is linked.
dnl Sets CK_CPPFLAGS, CK_LIBS, CK_PC_LIBS (what a static link by others needs) and ck_summary.
AC_DEFUN([FP8PIPE_CK], [
AC_ARG_WITH([ck], [AS_HELP_STRING([--with-ck=DIR], [Concurrency Kit's headers and libck.a are in DIR,
        or in DIR/include and DIR/lib])], [], [with_ck=])
AS_CASE([$with_ck],
    [no], [AC_MSG_ERROR([libfp8pipe cannot be built without Concurrency Kit])],
    [yes|''], [ck_include= ck_lib=],
    [for ck_include in "$with_ck/include" "$with_ck"; do
        AS_IF([test -f "$ck_include/ck_pr.h"], [break])
     done
     for ck_lib in "$with_ck/lib" "$with_ck/lib64" "$with_ck"; do
        AS_IF([test -f "$ck_lib/libck.a"], [break])
     done])
CK_CPPFLAGS=
AS_CASE([$ck_include], [''|/usr/include], [], [CK_CPPFLAGS="-isystem $ck_include"])
CK_PC_LIBS="${ck_lib:+-L$ck_lib }-lck"

saved_CPPFLAGS=$CPPFLAGS
saved_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS $CK_CPPFLAGS"
AC_CHECK_HEADER([ck_ec.h], [],
    [AC_MSG_ERROR([Concurrency Kit's header ck_ec.h (0.7 or later) was not found: install libck-dev, or say where it is with --with-ck=DIR])])
ck_found=
AC_MSG_CHECKING([for Concurrency Kit's library])
for candidate in "${ck_lib:+-L$ck_lib }-l:libck.a" "$CK_PC_LIBS"; do
    LIBS="$candidate $saved_LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <ck_ec.h>]],
                                    [[struct ck_ec32 ec = CK_EC_INITIALIZER;
                                      ck_ec32_wake(&ec, NULL);]])],
        [ck_found=$candidate; break])
done
AS_IF([test -z "$ck_found"],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([Concurrency Kit's library was not found: install libck-dev, or say where it is with --with-ck=DIR])])
AC_MSG_RESULT([$ck_found])
CK_LIBS=$ck_found
CPPFLAGS=$saved_CPPFLAGS
LIBS=$saved_LIBS
AS_CASE([$CK_LIBS], [*libck.a], [ck_summary="static"], [ck_summary="shared (no libck.a)"])
ck_summary="$ck_summary, ${with_ck:-the system's}"
AC_SUBST([CK_CPPFLAGS])
AC_SUBST([CK_LIBS])
])
