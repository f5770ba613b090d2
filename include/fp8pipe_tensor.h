/*
 * libfp8pipe: scalings, and the quantized tensors that are scaled by them. A part of fp8pipe.h,
 * which includes it and whose conventions hold.
 */
#ifndef FP8PIPE_TENSOR_H
#define FP8PIPE_TENSOR_H

#include <fp8pipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Scaling ------------------------------------------------------------------------------ */

enum fp8pipe_recipe { FP8PIPE_HYBRID = 0, FP8PIPE_ALL_E4M3 = 1 };
enum fp8pipe_amax { FP8PIPE_AMAX_MAX = 0, FP8PIPE_AMAX_MOST_RECENT = 1 };
enum fp8pipe_granularity { FP8PIPE_PER_TENSOR = 0 };    /* room for row, column and block */
enum fp8pipe_scale_source { FP8PIPE_SCALE_DELAYED = 0 }; /* room for current and static */

/* What a slot scales. HYBRID: X and W in E4M3, DY in E5M2. ALL_E4M3: all in E4M3. */
enum fp8pipe_role { FP8PIPE_ROLE_X = 0, FP8PIPE_ROLE_W = 1, FP8PIPE_ROLE_DY = 2 };

/*
 * Delayed scaling, one slot for each FP8 tensor. Every quantize folds max|x| of its input (unsigned
 * max over the bits of |x|, so NaN counts as non-finite) into the slot's history[0]; entries 1 to
 * history-1 hold the steps before. An update, for each slot, with last = history[0]:
 *   last = 0           nothing moves
 *   last inf or NaN    history[0] = 0, the non-finite flag is set, nothing else moves
 *   else               amax = max(last, entries 1 .. history-1) (MOST_RECENT: last);
 *                      scale = (fp8_max * 2^-margin) / amax, kept between FLT_MIN and FLT_MAX;
 *                      the window shifts by one, history[0] = 0.
 * Until a slot has a scale (its first update that moves it, a load, or initial_scale > 0), each
 * quantize scales its tensor by that tensor's own amax (by 1 if that is 0 or not finite).
 */
struct fp8pipe_scaling_options {
    size_t size;
    uint32_t slots;   /* 1 to 1048576 */
    uint32_t history; /* entries for each slot, 1 to 65536 */
    enum fp8pipe_recipe recipe;
    enum fp8pipe_amax amax;
    int32_t margin;       /* -64 to 64 */
    float initial_scale;  /* FLT_MIN to FLT_MAX: every slot's first; 0: from the tensor itself */
    const uint8_t *roles; /* enum fp8pipe_role of each slot, copied; NULL: slot i is role i % 3 */
    enum fp8pipe_granularity granularity;
    enum fp8pipe_scale_source source;
    int32_t count_extremes; /* 1: every quantize counts the values that it saturates and those other
                               than 0 that it flushes to 0, for each slot (fp8pipe_slot_state) */
    int32_t reserved;       /* 0 */
};
#define FP8PIPE_SCALING_OPTIONS_INIT                                                               \
    {                                                                                              \
        sizeof(struct fp8pipe_scaling_options), 0, 16, FP8PIPE_HYBRID, FP8PIPE_AMAX_MAX, 0, 0.0f,  \
            NULL, FP8PIPE_PER_TENSOR, FP8PIPE_SCALE_DELAYED, 0, 0                                  \
    }

/* Blocks while device memory is allocated and set. Destroy takes NULL; EBUSY while ops in flight or
 * linears use it. */
FP8PIPE_API enum fp8pipe_status
fp8pipe_scaling_create(struct fp8pipe *pipe, const struct fp8pipe_scaling_options *options,
                       struct fp8pipe_scaling **scaling);
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_destroy(struct fp8pipe_scaling *scaling);

/*
 * update: one launch for all slots, as above. skip: drops this step's amax (history[0] = 0) and
 * moves nothing. Both order themselves after every earlier use of the scaling, and every later use
 * after them, on all lanes, without tickets.
 */
struct fp8pipe_scaling_op {
    size_t size;
    struct fp8pipe_submit submit;
    const int32_t *skip_if; /* update only. Device; NULL: none. Read in stream order: not 0 turns
                               the update into a skip (and leaves the non-finite flags alone) */
};
#define FP8PIPE_SCALING_OP_INIT { sizeof(struct fp8pipe_scaling_op), FP8PIPE_SUBMIT_INIT, NULL }
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_update(struct fp8pipe_scaling *scaling,
                                                       const struct fp8pipe_scaling_op *op,
                                                       fp8pipe_ticket *ticket);
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_skip(struct fp8pipe_scaling *scaling,
                                                     const struct fp8pipe_scaling_op *op,
                                                     fp8pipe_ticket *ticket);

/*
 * What is on the device now for one slot. Ordered after all earlier submits on the scaling.
 * Blocks until it is read.
 */
struct fp8pipe_slot_state {
    size_t size;
    enum fp8pipe_format format;
    int32_t has_scale; /* 0: still scaled by each tensor's own amax */
    float scale;       /* multiplies before the cast; 1 while has_scale is 0 */
    float amax;        /* history[0]: folded so far in this step */
    int32_t nonfinite; /* 1 if the last update saw inf or NaN in this slot */
    uint64_t saturated; /* with count_extremes: values, inf too, whose scaled magnitude exceeded the
                           format's largest finite value, since create (not saved) */
    uint64_t flushed;   /* likewise: values other than 0 that became 0 */
};
#define FP8PIPE_SLOT_STATE_INIT                                                                    \
    { sizeof(struct fp8pipe_slot_state), FP8PIPE_E4M3, 0, 0.0f, 0.0f, 0, 0, 0 }
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_slot_get(struct fp8pipe_scaling *scaling,
                                                         uint32_t slot,
                                                         struct fp8pipe_slot_state *state);

/*
 * Device int32: 1 if the last update saw inf or NaN in any slot, else 0. To be read by the caller's
 * kernels ordered after the update's ticket. Lives as long as the scaling and its pipe.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_nonfinite_get(struct fp8pipe_scaling *scaling,
                                                              const int32_t **flag);

/*
 * Save and load the whole state (history, scales, flags) in a versioned, checksummed host buffer of
 * exactly fp8pipe_scaling_state_bytes() bytes. Both order themselves like an update and block until
 * done. load refuses (ESTATE) a buffer that is truncated, damaged, of another version, number of
 * slots, history length or slot formats, and then changes nothing.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_state_bytes(struct fp8pipe_scaling *scaling,
                                                            size_t *bytes);
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_save(struct fp8pipe_scaling *scaling, void *buffer,
                                                     size_t bytes);
FP8PIPE_API enum fp8pipe_status fp8pipe_scaling_load(struct fp8pipe_scaling *scaling,
                                                     const void *buffer, size_t bytes);

/* ---- Quantized tensors -------------------------------------------------------------------- */

/*
 * A quantized tensor holds FP8 bytes, row-wise and, where asked for, transposed, with the inverse
 * scale captured when they were written; or what a forward keeps for its backward. It is made once
 * and filled many times: each op that writes one starts a new filling, every reader captures the
 * filling that is current at its submit. Reading an empty one is EINVAL; reading one whose writer
 * failed cancels the reader.
 * clear empties it (its memory is given back once its submitted uses are issued). destroy takes
 * NULL; EBUSY while ops in flight use it.
 */
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_create(struct fp8pipe *pipe,
                                                      struct fp8pipe_tensor **tensor);
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_clear(struct fp8pipe_tensor *tensor);
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_destroy(struct fp8pipe_tensor *tensor);

/* What a tensor holds, as of the last submit. */
struct fp8pipe_tensor_info {
    size_t size;
    int32_t filled;     /* 0: empty, the rest is 0 */
    int32_t rowwise;    /* has FP8 bytes row-wise */
    int32_t transposed; /* has FP8 bytes transposed */
    int32_t weight;     /* holds a weight's version for dgrad */
    int64_t rows;       /* of the matrix that was quantized */
    int64_t cols;
    enum fp8pipe_format format;
    int32_t reserved;
};
#define FP8PIPE_TENSOR_INFO_INIT                                                                   \
    { sizeof(struct fp8pipe_tensor_info), 0, 0, 0, 0, 0, 0, FP8PIPE_E4M3, 0 }
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_info_get(struct fp8pipe_tensor *tensor,
                                                        struct fp8pipe_tensor_info *info);

#define FP8PIPE_ROWWISE 1u
#define FP8PIPE_TRANSPOSED 2u

/*
 * quantize: tensor <- cast(x * scale of the slot), round to nearest even, saturating (inf too) to
 * the largest finite value, -0 kept, every NaN 0x7F. Folds max|x| into the slot unless NO_AMAX.
 * column_sums (FP32, count x.cols; absent: none) (+)= sum over rows of x, in high precision, in a
 * fixed order.
 */
struct fp8pipe_quantize_op {
    size_t size;
    struct fp8pipe_submit submit;
    struct fp8pipe_matrix x; /* [rows, cols], any dtype */
    struct fp8pipe_scaling *scaling;
    uint32_t slot;
    uint32_t copies; /* FP8PIPE_ROWWISE, FP8PIPE_TRANSPOSED or both */
    struct fp8pipe_vector column_sums;
    int32_t column_sums_accumulate; /* 0: set, 1: add */
    int32_t reserved;
};
#define FP8PIPE_QUANTIZE_OP_INIT                                                                   \
    {                                                                                              \
        sizeof(struct fp8pipe_quantize_op), FP8PIPE_SUBMIT_INIT, FP8PIPE_MATRIX_NONE, NULL, 0,     \
            FP8PIPE_ROWWISE, FP8PIPE_VECTOR_NONE, 0, 0                                             \
    }
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_quantize(struct fp8pipe_tensor *tensor,
                                                        const struct fp8pipe_quantize_op *op,
                                                        fp8pipe_ticket *ticket);

/*
 * read: copies a filled tensor's FP8 bytes, dense and without padding, and its inverse scale
 * (x ~ value * scale_inv) to memory of the backend. Any destination may be NULL.
 */
struct fp8pipe_read_op {
    size_t size;
    struct fp8pipe_submit submit;
    void *rowwise;    /* rows * cols bytes */
    void *transposed; /* cols * rows bytes */
    float *scale_inv; /* one float */
};
#define FP8PIPE_READ_OP_INIT                                                                       \
    { sizeof(struct fp8pipe_read_op), FP8PIPE_SUBMIT_INIT, NULL, NULL, NULL }
FP8PIPE_API enum fp8pipe_status fp8pipe_tensor_read(struct fp8pipe_tensor *tensor,
                                                    const struct fp8pipe_read_op *op,
                                                    fp8pipe_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
