#include <fp8pipe.h>
#include <stdio.h>
#include <stdlib.h>

static void check(enum fp8pipe_status status)
{
    if (status != FP8PIPE_OK) {
        fprintf(stderr, "%s: %s\n", fp8pipe_strerror(status), fp8pipe_last_error());
        exit(1);
    }
}

int main(void)
{
    float x[3 * 64], w[32 * 64], y[3 * 32];
    struct fp8pipe_matrix X = {NULL, 3, 64, 64, FP8PIPE_FP32, 0}; /* data, rows, cols, stride */
    struct fp8pipe_matrix W = {NULL, 32, 64, 64, FP8PIPE_FP32, 0};
    struct fp8pipe_matrix Y = {NULL, 3, 32, 32, FP8PIPE_FP32, 0};
    struct fp8pipe_scaling_options recipe = FP8PIPE_SCALING_OPTIONS_INIT;
    struct fp8pipe_linear_options layer = FP8PIPE_LINEAR_OPTIONS_INIT;
    struct fp8pipe_forward_op forward = FP8PIPE_FORWARD_OP_INIT;
    struct fp8pipe *pipe;
    struct fp8pipe_scaling *scaling;
    struct fp8pipe_linear *linear;
    fp8pipe_ticket ticket;

    for (int i = 0; i < 32 * 64; i++) {
        w[i] = 0.25f, x[i % (3 * 64)] = 0.5f;
    }
    check(fp8pipe_open(NULL, &pipe)); /* on an NVIDIA GPU if there is one, else on the host */
    check(fp8pipe_alloc(pipe, sizeof(x), &X.data));
    check(fp8pipe_alloc(pipe, sizeof(w), &W.data));
    check(fp8pipe_alloc(pipe, sizeof(y), &Y.data));
    check(fp8pipe_upload(pipe, X.data, x, sizeof(x)));
    check(fp8pipe_upload(pipe, W.data, w, sizeof(w)));

    recipe.slots = 3; /* X, W and the gradient of Y have a scale each */
    check(fp8pipe_scaling_create(pipe, &recipe, &scaling));
    layer.in_features = 64, layer.out_features = 32, layer.weight = W, layer.scaling = scaling;
    check(fp8pipe_linear_create(pipe, &layer, &linear));

    forward.x = X, forward.y = Y;
    check(fp8pipe_linear_forward(linear, &forward, &ticket)); /* only enqueues */
    check(fp8pipe_wait(pipe, ticket, FP8PIPE_DONE, -1));
    check(fp8pipe_download(pipe, y, Y.data, sizeof(y)));
    printf("y[0] = %g\n", y[0]); /* 64 * 0.5 * 0.25 = 8 */

    check(fp8pipe_linear_destroy(linear));
    check(fp8pipe_scaling_destroy(scaling));
    check(fp8pipe_free(pipe, X.data));
    check(fp8pipe_free(pipe, W.data));
    check(fp8pipe_free(pipe, Y.data));
    check(fp8pipe_close(pipe, 0, -1));
    return 0;
}
