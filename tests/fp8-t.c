/*
 * The conversions of kernels/fp8.h and kernels/convert.h against an independent definition: codes
 * decoded from their bit fields in double, and rounding as the nearest of the decoded values, ties
 * to the even code.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/fp8.h"
#include "tap.h"

/* ---- The definition ----------------------------------------------------------------------- */

enum specials {
    SPECIALS_IEEE, /* the largest exponent: inf and NaN */
    SPECIALS_NAN   /* all ones: NaN; no inf */
};

struct format {
    const char *name;
    int exponent_bits;
    int mantissa_bits;
    enum specials specials;
    int saturates; /* also every NaN is 0x7F */
    uint32_t (*from_float)(float x);
    float (*to_float)(uint32_t code);
    /* filled by format_prepare: */
    uint32_t finite;      /* codes 0 .. finite-1 are finite and not negative */
    double value[32768];  /* of those */
    double middle[32768]; /* between code i and what follows it */
};

static int sign_shift(const struct format *format)
{
    return format->exponent_bits + format->mantissa_bits;
}

/* As if every exponent were an ordinary one. */
static double decode_plain(const struct format *format, uint32_t magnitude)
{
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    int exponent = (int)(magnitude >> format->mantissa_bits);
    int mantissa = (int)(magnitude & ((1u << format->mantissa_bits) - 1));

    if (exponent == 0) {
        return ldexp(mantissa, 1 - bias - format->mantissa_bits);
    }
    return ldexp((1 << format->mantissa_bits) + mantissa, exponent - bias - format->mantissa_bits);
}

static double decode(const struct format *format, uint32_t code)
{
    uint32_t all = (1u << sign_shift(format)) - 1;
    uint32_t magnitude = code & all;
    uint32_t inf = all & ~((1u << format->mantissa_bits) - 1);
    double value = decode_plain(format, magnitude);

    if (format->specials == SPECIALS_IEEE && magnitude >= inf) {
        value = magnitude == inf ? INFINITY : NAN;
    } else if (format->specials == SPECIALS_NAN && magnitude == all) {
        value = NAN;
    }
    return code >> sign_shift(format) ? -value : value;
}

static void format_prepare(struct format *format)
{
    while (isfinite(decode(format, format->finite)) && !signbit(decode(format, format->finite))) {
        uint32_t code = format->finite++;

        format->value[code] = decode(format, code);
        format->middle[code] =
            (format->value[code] + decode_plain(format, code + 1)) / 2; /* exact in double */
    }
}

/* The code of the nearest value, ties to the even code, by looking at all of them; saturates. */
static uint32_t nearest_of_all(const struct format *format, double magnitude)
{
    uint32_t best = 0;

    /* Far above, the distances to different values would be the same double. */
    magnitude = fmin(magnitude, format->value[format->finite - 1]);
    for (uint32_t code = 1; code < format->finite; code++) {
        double here = fabs(format->value[code] - magnitude);
        double there = fabs(format->value[best] - magnitude);

        if (here < there || (here == there && code % 2 == 0)) {
            best = code;
        }
    }
    return best;
}

/* The same by bisection: how many middles x is beyond, with a tie beyond an odd code's. */
static uint32_t nearest(const struct format *format, double magnitude)
{
    uint32_t low = 0;
    uint32_t high = format->saturates ? format->finite - 1 : format->finite;

    while (low < high) {
        uint32_t code = (low + high) / 2;
        double middle = format->middle[code];

        if (magnitude > middle || (magnitude == middle && code % 2 == 1)) {
            low = code + 1;
        } else {
            high = code;
        }
    }
    return low;
}

/* What from_float(x) has to be; 0 and *any_nan for a NaN of that sign whose payload is free. */
static uint32_t encode(const struct format *format, float x, int *any_nan)
{
    uint32_t sign = signbit(x) ? 1u << sign_shift(format) : 0;

    *any_nan = isnan(x) && !format->saturates;
    if (isnan(x)) {
        return format->saturates ? 0x7f : sign;
    }
    return sign | nearest(format, fabs((double)x));
}

/* ---- Inputs ------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

#define SWEEP (UINT32_C(1) << 24)

/* One float32 from each 256 neighbours: every sign and exponent, with the low bits mixed. */
static uint32_t sweep_bits(uint32_t i)
{
    return i << 8 | (i * UINT32_C(0x9e3779b1) >> 24);
}

static const uint32_t special_bits[] = {
    0x00000000, 0x00000001, 0x00000002, 0x007fffff, 0x00800000, 0x00800001, 0x33000000,
    0x33000001, 0x33800000, 0x37800000, 0x37000000, 0x37000001, 0x36ffffff, 0x3a800000,
    0x3a800001, 0x3a7fffff, 0x43dfffff, 0x43e00000, 0x43e00001, 0x43e7ffff, 0x43e80000,
    0x43e80001, 0x43f00000, 0x44000000, 0x475fffff, 0x47600000, 0x47600001, 0x476fffff,
    0x47700000, 0x47700001, 0x477fefff, 0x477ff000, 0x47800000, 0x7f7f7fff, 0x7f7f8000,
    0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fc00001, 0x7fffffff,
};

/* ---- Tests -------------------------------------------------------------------------------- */

static int64_t check(const struct format *format, float x)
{
    uint32_t sign = 1u << sign_shift(format);
    int any_nan;
    uint32_t want = encode(format, x, &any_nan);
    uint32_t got = format->from_float(x);

    if (any_nan ? isnan(decode(format, got)) && (got & sign) == want : got == want) {
        return 0;
    }
    diag("%s of %a (bits %08x) is %#x, should be %#x%s", format->name, (double)x, to_bits(x), got,
         want, any_nan ? " or any NaN of that sign" : "");
    return 1;
}

/* Counts wrong ones, and stops soon when there are. */
#define WRONG_ENOUGH 5

static int64_t check_sweep(const struct format *format, uint32_t step)
{
    int64_t wrong = 0;

    for (uint32_t i = 0; i < SWEEP && wrong < WRONG_ENOUGH; i += step) {
        wrong += check(format, from_bits(sweep_bits(i)));
    }
    return wrong;
}

static int64_t check_special(const struct format *format)
{
    int64_t wrong = 0;

    for (size_t i = 0; i < sizeof(special_bits) / sizeof(special_bits[0]); i++) {
        wrong += check(format, from_bits(special_bits[i]));
        wrong += check(format, from_bits(special_bits[i] | UINT32_C(0x80000000)));
    }
    return wrong;
}

/* x, and the two float32 next to it on either side, both signs. */
static int64_t check_around(const struct format *format, double x)
{
    int64_t wrong = 0;

    for (int32_t step = -2; step <= 2; step++) {
        uint32_t bits = to_bits((float)x) + (uint32_t)step;

        bits &= UINT32_C(0x7fffffff); /* below 0: a NaN, which is as good an input */
        wrong += check(format, from_bits(bits));
        wrong += check(format, from_bits(bits | UINT32_C(0x80000000)));
    }
    return wrong;
}

static int64_t check_ties(const struct format *format)
{
    int64_t wrong = 0;

    for (uint32_t code = 0; code < format->finite && wrong < WRONG_ENOUGH; code++) {
        wrong += check_around(format, format->value[code]);
        wrong += check_around(format, format->middle[code]);
    }
    return wrong;
}

/* Every value of a 16-bit format as an input. */
static int64_t check_all_of(const struct format *format, const struct format *inputs)
{
    int64_t wrong = 0;

    for (uint32_t code = 0; code < 65536 && wrong < WRONG_ENOUGH; code++) {
        float x = (float)decode(inputs, code);

        if (isnan(x)) {
            x = inputs->to_float(code); /* with its payload */
        }
        wrong += check(format, x);
    }
    return wrong;
}

/* Bisection against the search over all values. */
static int64_t check_definition(const struct format *format, const struct format *inputs)
{
    int64_t wrong = 0;

    for (uint32_t code = 0; code < inputs->finite && wrong < WRONG_ENOUGH; code++) {
        double x = inputs->value[code];

        wrong += nearest(format, x) != nearest_of_all(format, x);
    }
    for (uint32_t code = 0; code < format->finite; code++) {
        double x = format->middle[code];

        wrong += nearest(format, x) != nearest_of_all(format, x);
    }
    return wrong;
}

static int64_t check_decode(const struct format *format)
{
    int64_t wrong = 0;
    uint32_t codes = 2u << sign_shift(format);

    for (uint32_t code = 0; code < codes && wrong < WRONG_ENOUGH; code++) {
        double want = decode(format, code);
        float got = format->to_float(code);
        int same =
            isnan(want) ? isnan(got) : (double)got == want && !signbit(got) == !signbit(want);

        if (!same || (signbit(got) != 0) != (code >> sign_shift(format) != 0)) {
            diag("%s code %#x is %a, should be %a", format->name, code, (double)got, want);
            wrong++;
        }
    }
    return wrong;
}

static uint32_t e4m3_from(float x)
{
    return fp8_e4m3_from_float(x);
}

static uint32_t e5m2_from(float x)
{
    return fp8_e5m2_from_float(x);
}

static uint32_t bf16_from(float x)
{
    return bf16_from_float(x);
}

static uint32_t fp16_from(float x)
{
    return fp16_from_float(x);
}

static float e4m3_to(uint32_t code)
{
    return fp8_e4m3_to_float((uint8_t)code);
}

static float e5m2_to(uint32_t code)
{
    return fp8_e5m2_to_float((uint8_t)code);
}

static float bf16_to(uint32_t code)
{
    return bf16_to_float((uint16_t)code);
}

static float fp16_to(uint32_t code)
{
    return fp16_to_float((uint16_t)code);
}

static struct format e4m3 = {.name = "E4M3",
                             .exponent_bits = 4,
                             .mantissa_bits = 3,
                             .specials = SPECIALS_NAN,
                             .saturates = 1,
                             .from_float = e4m3_from,
                             .to_float = e4m3_to};
static struct format e5m2 = {.name = "E5M2",
                             .exponent_bits = 5,
                             .mantissa_bits = 2,
                             .specials = SPECIALS_IEEE,
                             .saturates = 1,
                             .from_float = e5m2_from,
                             .to_float = e5m2_to};
static struct format bf16 = {.name = "bf16",
                             .exponent_bits = 8,
                             .mantissa_bits = 7,
                             .specials = SPECIALS_IEEE,
                             .from_float = bf16_from,
                             .to_float = bf16_to};
static struct format fp16 = {.name = "fp16",
                             .exponent_bits = 5,
                             .mantissa_bits = 10,
                             .specials = SPECIALS_IEEE,
                             .from_float = fp16_from,
                             .to_float = fp16_to};

static void test_any(struct format *format, uint32_t sweep_step)
{
    is_int(check_decode(format), 0, "%s: every code decodes to its value", format->name);
    is_int(check_special(format), 0, "%s: zeros, subnormals, overflow, inf and NaN", format->name);
    is_int(check_ties(format), 0, "%s: every value, every tie, and their neighbours", format->name);
    is_int(check_sweep(format, sweep_step), 0, "%s: %u float32 values of all exponents",
           format->name, SWEEP / sweep_step);
}

static void test_fp8(struct format *format, enum fp8pipe_format public_format, double largest)
{
    is_int(check_definition(format, &fp16), 0, "%s: bisection is the nearest of all fp16",
           format->name);
    is_int(check_definition(format, &bf16), 0, "%s: bisection is the nearest of all bf16",
           format->name);
    test_any(format, TEST_SANITIZED ? 17 : 1);
    is_int(check_all_of(format, &bf16), 0, "%s: every bf16 value", format->name);
    is_int(check_all_of(format, &fp16), 0, "%s: every fp16 value", format->name);
    ok(format->value[format->finite - 1] == largest && (double)fp8_max(public_format) == largest,
       "%s: the largest finite value is %.0f", format->name, largest);
    is_int(fp8_from_float(1.5f, public_format), format->from_float(1.5f),
           "%s: from_float by format", format->name);
    ok(fp8_to_float(0x41, public_format) == format->to_float(0x41), "%s: to_float by format",
       format->name);
}

int main(void)
{
    plan(2 * 11 + 2 * 4);
    format_prepare(&e4m3);
    format_prepare(&e5m2);
    format_prepare(&bf16);
    format_prepare(&fp16);
    test_fp8(&e4m3, FP8PIPE_E4M3, 448);
    test_fp8(&e5m2, FP8PIPE_E5M2, 57344);
    test_any(&bf16, 16);
    test_any(&fp16, 16);
    return done_testing();
}
