dnl FP8PIPE_SANITIZER
dnl Sets SANITIZER_CPPFLAGS, SANITIZER_CFLAGS, and sanitizers (the list with spaces).
AC_DEFUN([FP8PIPE_SANITIZER], [
AC_ARG_ENABLE([sanitizer],
    [AS_HELP_STRING([--enable-sanitizer=LIST],
        [build with address, undefined or thread; address,undefined go together])],
    [], [enable_sanitizer=no])
sanitizers=
AS_CASE([$enable_sanitizer],
    [no], [],
    [yes], [AC_MSG_ERROR([--enable-sanitizer needs a name: address, undefined or thread])],
    [sanitizers=$(echo "$enable_sanitizer" | tr , ' ')])
SANITIZER_CPPFLAGS=
SANITIZER_CFLAGS=
for one in $sanitizers; do
    AS_CASE([$one],
        [address], [],
        dnl A report that does not end the program would pass unseen.
        [undefined], [AS_VAR_APPEND([SANITIZER_CFLAGS], [" -fno-sanitize-recover=undefined"])],
        dnl The overlays show the sanitizer what CK's assembly and some newer calls do. Without
        dnl -fno-builtin gcc copies inline and misses the races on what memcpy copies.
        [thread], [SANITIZER_CPPFLAGS='-include $(top_srcdir)/build-aux/tsan/ck_pr_tsan.h -include $(top_srcdir)/build-aux/tsan/pthread_tsan.h'
                   AS_VAR_APPEND([SANITIZER_CFLAGS], [" -fno-builtin"])],
        [AC_MSG_ERROR([unknown sanitizer '$one': address, undefined or thread])])
    AS_VAR_APPEND([SANITIZER_CFLAGS], [" -fsanitize=$one"])
done
AS_CASE([" $sanitizers "],
    [*" thread "*" address "*|*" address "*" thread "*],
        [AC_MSG_ERROR([the thread and address sanitizers exclude each other])])
AS_IF([test -n "$sanitizers"], [
    AS_VAR_APPEND([SANITIZER_CFLAGS], [" -fno-omit-frame-pointer -g"])
    saved_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $SANITIZER_CFLAGS"
    AC_MSG_CHECKING([whether $CC links with $SANITIZER_CFLAGS])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])], [AC_MSG_RESULT([yes])],
        [AC_MSG_RESULT([no])
         AC_MSG_ERROR([$CC cannot link with $SANITIZER_CFLAGS: is its sanitizer runtime installed?])])
    CFLAGS=$saved_CFLAGS])
AC_SUBST([sanitizers])
AC_SUBST([SANITIZER_CPPFLAGS])
AC_SUBST([SANITIZER_CFLAGS])
])
