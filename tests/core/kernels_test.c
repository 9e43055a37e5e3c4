/* kernels_test.c - the CPU kernels of every op, called the way a binding calls them: where data may lie, what is empty,
 * memory that runs out, and threads. What they compute is for other tests. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "tests/core/samples.h"

static const tfu_op *const ops[] = {
#define X(stem) &tfu_##stem,
#include "ops.def"
#undef X
};

#define LIST "x|c|0"
static const row rows[] = {
    {&tfu_add_constant, {"x", ""}, ""},
    {&tfu_arg_reduce, {"n9"}, "axis=-1 I=int32 rest=any"},
    {&tfu_arg_reduce, {"9n"}, "kind=min I=int32 rest=any"},
    {&tfu_argsort, {"x"}, "descending=true"},
    {&tfu_attention, {"2q4d", "2q2d", "2q29", "0", "0", "0", "0", "0"}, "scale=0.5 rest=columns"},
    {&tfu_attention,
     {"2q4d", "2q2d", "2q29", "4qq", "21qq", "2<q", "2^q", ""},
     "scale=0.5 align=last left=20 right=3 rate=0.25 rest=columns"},
    {&tfu_attention, {"q4d", "q2d", "q29", "0", "0", "3^m", "3^m", "0"}, "scale=0.5 right=0 soft_cap=2 rest=columns"},
    {&tfu_attention_grad,
     {"2q49", "2q4d", "2q2d", "2q29", "4qq", "21qq", "2<q", "2^q", "", "2q49", "24q", "24q", "4qq"},
     "scale=0.5 align=last left=20 right=3 rate=0.25 rest=columns"},
    {&tfu_attention_grad,
     {"q49", "q4d", "q2d", "q29", "0", "0", "3^m", "3^m", "0", "q49", "4q", "0", "0"},
     "scale=0.5 right=0 soft_cap=2 rest=columns"},
    {&tfu_average_pool, {"2n45c", "n430"}, "padding=same window_d=3 window_w=2 stride_w=2"},
    {&tfu_average_pool,
     {"2n45c", "n430"},
     "padding=pairs window_d=3 window_w=2 stride_w=2 before=1099511627777 after=1"},
    {&tfu_average_pool_grad, {"2n43c", "n450"}, "padding=same window_d=3 window_w=2 stride_w=2"},
    {&tfu_average_pool_grad,
     {"2n43c", "n450"},
     "padding=zeros window_d=3 window_w=2 stride_w=2 before=1099511627777 after=1"},
    {&tfu_batch_norm, {"nc3", "c", "c", "c", "c+", "nc3", "0"}, "activation=relu"},
    {&tfu_batch_norm, {"nc1", "c", "c", "c", "c+", "nc1", "s0"}, "activation=relu"},
    {&tfu_batch_norm, {"nc1", "0", "c", "c", "c+", "0", "0"}, "activation=gelu"},
    {&tfu_batch_norm_grad, {"nc3", "nc3", "c", "c", "c", "c+", "nc3", "0", "0"}, "activation=relu"},
    {&tfu_batch_norm_grad, {"nc1", "nc1", "c", "c", "c", "c+", "0", "nc1", "s1"}, "activation=relu"},
    {&tfu_batch_norm_grad, {"nc1", "nc1", "c", "c", "c", "c+", "nc1", "nc1", "0"}, "activation=gelu"},
    {&tfu_batch_norm_grad, {"nc1", "nc1", "0", "0", "c", "c+", "0", "0", "0"}, "activation=silu"},
    {&tfu_batch_norm_statistics, {"nc3", "c", "c+", "c"}, "rest=any"},
    {&tfu_batch_norm_statistics, {"nc1", "c", "c+", "0"}, "rest=any"},
    {&tfu_batched_matmul, {"2nc", "2c9", "0", "0", "0"}, "scale=0.5"},
    {&tfu_batched_matmul, {"2nc", "9n", "c9", "", ""}, ""},
    {&tfu_bincount, {"x<h", "90"}, "T=int32"},
    {&tfu_clip_by_tensors_norm, {LIST, "+", "+"}, "N=3 rest=any"},
    {&tfu_concat, {"2cn|2wn|20n"}, "axis=-2 N=3"},
    {&tfu_concat, {"n3|nc|n0"}, "axis=1 N=5 rest=columns"},
    {&tfu_concat, {"nc|nc|9c"}, "axis=0 N=3 rest=any"},
    {&tfu_concat_split, {"n9", "40|00|50"}, "axis=-1 N=3 rest=columns"},
    {&tfu_concat_split, {"2w5n", "c0|c0"}, "axis=1 N=2"},
    {&tfu_concat_split, {"ec", "d0|d0|00"}, "axis=0 N=3 rest=any"},
    {&tfu_conv, {"2q3d", "33d9", "9", "2q39", "q30"}, "padding=same relu=true rest=columns"},
    {&tfu_conv, {"2q3", "519", "0", "0", "q0"}, "padding=causal rest=any"},
    {&tfu_conv, {"2q3d", "33d9", "0", "0", "q30"}, "K=real padding=same"},
    {&tfu_conv_data, {"2q39", "33d9", "q3d0"}, "padding=same"},
    {&tfu_conv_data, {"2q39", "33d9", "q3d0"}, "K=real padding=same"},
    {&tfu_conv_filter, {"2q3d", "2q39", "33d90"}, "padding=same"},
    {&tfu_conv_filter, {"2q3d", "2q39", "33d90"}, "K=real padding=same"},
    {&tfu_conv_own, {"2q3d", "33d9", "q30"}, "padding=same rung=shared"},
    {&tfu_cross_entropy, {"x", "x"}, "smoothing=0.1 z_loss=0.01 rest=columns"},
    {&tfu_cross_entropy_grad, {"x", "x", "r3+", "r", "x"}, "smoothing=0.1 z_loss=0.01"},
    {&tfu_decode_attention,
     {"34e", "32e", "329", "782e", "7829", "3<7", "3<9", "39<7", "3^q", "d"},
     "scale=0.5 left=20 rest=any"},
    {&tfu_decode_attention,
     {"34d", "32d", "32d", "782d", "782d", "3<7", "0", "39<7", "3^q", "0"},
     "scale=0.5 soft_cap=2 rest=any"},
    {&tfu_depthwise_conv, {"2n5c", "33c1", "c", "n50", "00"}, "activation=gelu padding=same"},
    {&tfu_depthwise_conv, {"27nc", "34c2", "0", "7n0", "0"}, "padding=causal"},
    {&tfu_depthwise_conv, {"2n5c", "23c3", "0", "n30", "0"}, "padding=same stride_w=2 dilation_h=2"},
    {&tfu_depthwise_conv_grad, {"2n5c", "2n5c", "33c1", "c", "2n5c", "00", "00"}, "activation=gelu padding=same"},
    {&tfu_depthwise_conv_grad, {"2n3w", "2n5c", "23c2", "w", "0", "00", "00"}, "padding=same stride_w=2 dilation_h=2"},
    {&tfu_depthwise_conv_grad, {"2n5c", "2n5c", "33c1", "0", "0", "0", "00"}, "padding=causal"},
    {&tfu_dropout, {"x", ""}, "rate=0.25"},
    {&tfu_experts, {"n9", "n2", "n2<4", "394", "394", "345", "n5"}, "activation=silu rest=any"},
    {&tfu_experts, {"n9", "n2", "n2<3", "394", "0", "325", "0"}, "activation=silu rest=any"},
    {&tfu_float8_linear, {"nc", "c9", "+", "+", "9", "n9", ""}, "activation=gelu rest=columns"},
    {&tfu_float8_linear, {"nc", "9c", "0", "9+", "0", "0", "0"}, "order=columns W=uint8"},
    {&tfu_float8_linear_grad,
     {"n9", "nc", "c9", "+", "+", "+", "5+", "1+", "3+", "9", "n9"},
     "activation=gelu rest=any"},
    {&tfu_float8_linear_grad, {"n9", "0", "9c", "0", "9+", "0", "0", "0", "0", "0", "0"}, "order=columns W=uint8"},
    {&tfu_frozen_batch_norm, {"nc3", "c", "c", "c", "c+", "nc3"}, "activation=relu"},
    {&tfu_frozen_batch_norm, {"nc1", "0", "0", "c", "c+", "0"}, ""},
    {&tfu_frozen_batch_norm_grad, {"nc3", "nc3", "c", "c", "c", "c+", "nc3", "0"}, "activation=relu"},
    {&tfu_frozen_batch_norm_grad, {"nc1", "nc1", "0", "c", "c", "c+", "0", "0"}, "activation=gelu"},
    {&tfu_gated, {"x", "x"}, "activation=gelu"},
    {&tfu_gated, {"rw", "0"}, "activation=silu"},
    {&tfu_gated_grad, {"x", "x", "x"}, "activation=gelu"},
    {&tfu_gated_grad, {"x", "rw", "0"}, "activation=silu"},
    {&tfu_group_norm, {"2n2c", "w", "w"}, "rest=any"},
    {&tfu_group_norm_grad, {"2n2c", "2n2c", "w", "w", "222+"}, ""},
    {&tfu_histogram, {"x", "2+", "90"}, ""},
    {&tfu_linear, {"nc", "c9", "9", "n9", ""}, "activation=gelu rest=columns"},
    {&tfu_linear, {"nc", "c9", "0", "0", "0"}, ""},
    {&tfu_linear_cross_entropy, {"nc", "c9", "9", "n<9", "0", "0", "0", "0"}, "z_loss=0.01 ignore=0 rest=columns"},
    {&tfu_linear_cross_entropy,
     {"nc", "9c", "9", "n<9", "n1", "nc", "9c", "9"},
     "transposed=true L=int32 rest=columns"},
    {&tfu_linear_cross_entropy_grad, {"nc", "c9", "9", "n<9", "n", "nc", "c9", "9"}, "smoothing=0.1 rest=columns"},
    {&tfu_linear_grad, {"n9", "nc", "c9", "9", "n9"}, "activation=gelu rest=columns"},
    {&tfu_matmul_own, {"2nc", "2c9"}, ""},
    {&tfu_matmul_own_grad, {"2n9", "2nc", "2c9"}, ""},
    {&tfu_max_pool, {"2n45c", "n430", "00"}, "padding=same window_d=3 window_w=2 stride_w=2"},
    {&tfu_max_pool, {"2n45c", "n430", "0"}, "padding=same window_d=3 window_w=2 stride_w=2"},
    {&tfu_max_pool,
     {"2n45c", "n430", "00"},
     "padding=zeros window_d=3 window_w=2 stride_w=2 before=1099511627777 after=1"},
    {&tfu_max_pool_grad, {"2n439", "2n432", "n450"}, "padding=same window_d=3 window_w=2 stride_w=2 rest=columns"},
    {&tfu_norm, {"x", "x", "c", "c", ""}, "rate=0.25 rest=columns"},
    {&tfu_norm, {"x", "0", "c", "0", "0"}, "kind=rms rest=columns"},
    {&tfu_norm_grad, {"x", "x", "x", "c", "c", "r2+", ""}, "rate=0.25"},
    {&tfu_norm_grad, {"x", "0", "x", "c", "0", "r2+", "0"}, "kind=rms"},
    {&tfu_paged_attention, {"2q4d", "782d", "7829", "29<7", "2^q"}, "scale=0.5 align=last right=0 rest=columns"},
    {&tfu_projections, {"nc", "c", "c9", "c5", "c2", "9", "0", "2", "n9"}, "rest=columns"},
    {&tfu_projections, {"nc", "c", "c9", "c9", "0", "9", "9", "0", "0"}, "activation=silu gated=true rest=columns"},
    {&tfu_projections, {"nc", "0", "c9", "0", "0", "0", "0", "0", "0"}, ""},
    {&tfu_put_rows, {"12d", "12d", "92d", "92d", "1<9"}, "rest=any"},
    {&tfu_quantized_conv,
     {"2q3d", "933d", "9+", "9", "2q39", "q30"},
     "padding=same relu=true Y=float R=float rest=columns"},
    {&tfu_quantized_conv,
     {"2q3d", "933d", "9+", "0", "2q39", "q30"},
     "padding=same y_scale=0.01 Y=int8 R=int8 rest=columns"},
    {&tfu_quantized_conv, {"2q4d", "912d", "9+", "0", "0", "q30"}, "Y=float R=int8"},
    {&tfu_quantized_linear, {"nc", "c9", "9+", "9", "c+", "0", "9", "n9"}, "activation=gelu rest=columns"},
    {&tfu_quantized_linear, {"nc", "c5", "9+", "0", "0", "0", "0", "0"}, "bits=4 divide=true quantize_rows=true"},
    {&tfu_quantized_linear, {"nc", "9c", "91+", "91", "0", "c+", "9", "0"}, "order=columns rest=columns"},
    {&tfu_quantized_linear_grad, {"n9", "c5", "19+", "19", "0", "0", "9", "n9"}, "activation=gelu bits=4 rest=columns"},
    {&tfu_quantized_linear, {"nt", "11b", "129+", "0", "0", "0", "0", "0"}, "order=tiles rest=any"},
    {&tfu_quantized_projections,
     {"nt", "t", "11b", "11b", "11b", "9", "0", "2", "n9", "129+", "125+", "122+"},
     "rest=any"},
    {&tfu_quantized_projections,
     {"nt", "t", "11b", "11b", "0", "9", "9", "0", "0", "129+", "129+", "0"},
     "activation=silu gated=true quantize_rows=true rest=any"},
    {&tfu_recurrence, {"7q8", "28", "8", "72", "72", "7q", "78", ""}, "rest=any"},
    {&tfu_recurrence, {"3q6", "26", "0", "0", "0", "0", "0", "0"}, "cell=gru activation=elu rest=any"},
    {&tfu_recurrence_grad, {"7q1", "71", "14", "71", "71", "7q", "0", "7q1", "7q5"}, "rest=any"},
    {&tfu_recurrence_grad, {"3q2", "0", "26", "0", "0", "0", "36", "3q2", "3q8"}, "cell=gru activation=elu rest=any"},
    {&tfu_reduce, {"x"}, ""},
    {&tfu_reduce, {"x"}, "kind=l2 axes=256"},
    {&tfu_reduce, {"x"}, "kind=max axes=1 rest=any"},
    {&tfu_reduce, {"x"}, "kind=prod rest=any"},
    {&tfu_reduce, {"x"}, "kind=logsumexp axes=256 rest=any"},
    {&tfu_reduce, {"2n2c"}, "kind=variance axes=5 keepdims=true rest=any"},
    {&tfu_reduce_grad, {"r", "x", "0", "0"}, "kind=variance axes=256"},
    {&tfu_reduce_grad, {"r", "x", "r", "0"}, "kind=l2 axes=256"},
    {&tfu_reduce_grad, {"n2", "0", "0", "n2c0"}, "kind=sum axes=4"},
    {&tfu_reduce_grad, {"2c", "0", "0", "2nc0"}, "kind=sum axes=2"},
    {&tfu_reduce_grad, {"", "x", "0", "0"}, "kind=min"},
    {&tfu_reduce_grad, {"n2", "n2c", "0", "0"}, "kind=logsumexp axes=4"},
    {&tfu_reduce_grad, {"2c", "2nc", "0", "0"}, "kind=prod axes=2"},
    {&tfu_resize, {"2n45c", "n730"}, ""},
    {&tfu_resize, {"n245c", "4930"}, "interpolation=lanczos3 antialias=true"},
    {&tfu_resize_grad, {"2n73c", "n450"}, "interpolation=bicubic convention=asymmetric"},
    {&tfu_rnn, {"3qd", "d8", "28", "8", "8", "32", "32", ""}, "rest=any"},
    {&tfu_rnn, {"3qd", "d6", "26", "0", "0", "0", "0", "0"}, "cell=gru rest=any"},
    {&tfu_rnn_grad, {"3q1", "31", "3qd", "d4", "14", "4", "4", "31", "31", "3q1", "3q8"}, "rest=any"},
    {&tfu_rnn_grad, {"3q1", "0", "3qd", "d3", "13", "0", "3", "0", "0", "3q1", "3q8"}, "cell=gru rest=any"},
    {&tfu_rope, {"2n2e", "2n1e", "2", "0"}, ""},
    {&tfu_rope, {"2n2e", "2n1e", "2", "d"}, ""},
    {&tfu_rope, {"2n2e", "0", "2n", "0"}, "P=int32 pairing=interleaved inverse=true"},
    {&tfu_route_experts, {"n9"}, "top_k=3 rest=any"},
    {&tfu_sample_logits, {"3c", "3+", "3<4", "3+", "3<9", "3<9"}, "rest=any"},
    {&tfu_scale_bias_act, {"x", "c", "c"}, "activation=gelu"},
    {&tfu_scale_bias_act_grad, {"x", "x", "c", "c"}, "activation=gelu"},
    {&tfu_scale_bias_act_grad, {"x", "x", "", "0"}, "activation=mish"},
    {&tfu_scale_channels, {"n3c", "n1c"}, ""},
    {&tfu_scale_channels, {"3nc", "31c"}, "drop=true"},
    {&tfu_scale_channels_grad, {"3nc", "3nc", "31c"}, ""},
    {&tfu_scale_linear_cross_entropy, {"x", ""}, ""},
    {&tfu_scan, {"x"}, "axis=-1"},
    {&tfu_scan, {"n2c"}, "kind=prod reverse=true"},
    {&tfu_scan, {"nc"}, "kind=max axis=1 exclusive=true"},
    {&tfu_scan, {"2nc"}, "kind=logsumexp axis=1 exclusive=true reverse=true"},
    {&tfu_scan_linear, {"nc", "nc", "0"}, "axis=-1"},
    {&tfu_scan_linear, {"2n3c", "2n3c", "213c"}, "axis=1 reverse=true"},
    {&tfu_scan_linear_grad, {"nc", "nc", "nc", "n1"}, "axis=1 rest=columns"},
    {&tfu_scan_linear_grad, {"2n3c", "2n3c", "2n3c", "0"}, "axis=1 reverse=true"},
    {&tfu_scan_recurrence, {"nc", "nc"}, "axis=-1"},
    {&tfu_scan_recurrence, {"2n3c", "2n3c"}, "axis=1 exclusive=true reverse=true"},
    {&tfu_segment_sum, {"9c", "9^8", "0", "90"}, "rest=any"},
    {&tfu_segment_sum, {"nc", "n<9", "0", "90"}, "sorted=false L=int32"},
    {&tfu_selective_scan, {"3qe", "3qe", "e3", "3q23", "3q23", "e", "3e3"}, "rest=any"},
    {&tfu_selective_scan, {"3qd", "3qd", "d9", "3q19", "3q19", "0", "0"}, ""},
    {&tfu_selective_scan_grad, {"3qe", "3e3", "3qe", "3qe", "e3", "3q23", "3q23", "e", "3e3"}, "rest=any"},
    {&tfu_selective_scan_grad, {"3qd", "0", "3qd", "3qd", "d9", "3q19", "3q19", "0", "0"}, ""},
    {&tfu_softmax, {"x", "x"}, "scale=0.5"},
    {&tfu_softmax, {"x", "c"}, "M=T log=true"},
    {&tfu_softmax_grad, {"x", "x"}, "scale=0.5"},
    {&tfu_sort, {"x"}, ""},
    {&tfu_sparse_cross_entropy, {"x", "r<c"}, "smoothing=0.1 ignore=0 rest=columns"},
    {&tfu_sparse_cross_entropy_grad, {"x", "r<c", "r2+", "r"}, "ignore=0 L=int32"},
    {&tfu_square, {"x"}, ""},
    {&tfu_square_grad, {"x", "x"}, ""},
    {&tfu_take_rows, {"9c", "n<9"}, "rest=any"},
    {&tfu_tensors_norm, {LIST}, "N=3 rest=any"},
    {&tfu_tensors_update, {LIST, LIST, "x+|c+|0", "+", "<h", "8+", "+", "+"}, "rule=adam N=3 M=6 rest=any"},
    {&tfu_tensors_update, {LIST, LIST, "x+|c+|0", "+", "<h", "8+", "3+", "0"}, "rule=lamb N=3 M=6 rest=any"},
    {&tfu_tensors_update, {LIST, LIST, "", "+", "<h", "8+", "0", "0"}, "rule=sgd N=3 rest=any"},
    {&tfu_transpose, {"nc"}, "perm=1"},
    {&tfu_transpose, {"n2c3"}, "perm=4866"},
    {&tfu_top_k, {"x", "d0"}, ""},
    {&tfu_unique, {"n"}, "rest=columns"},
    {&tfu_unsort, {"r1", "r1<c", "x"}, ""},
    {&tfu_weighted_bincount, {"x", "x<h", "90"}, "L=int32"},
    {&tfu_weighted_bincount_grad, {"r9", "x<h"}, "L=int32"},
};

/* Under gcc's address sanitizer what is called for every row takes microseconds. */
#ifdef __SANITIZE_ADDRESS__
#define MANY(n) ((n) / 100)
#else
#define MANY(n) (n)
#endif

/* ---- tests ---- */

static int count_of(const char *const *texts) {
  int n = 0;
  while (n < TFU_MAX_ARGS && texts[n]) n++;
  return n;
}

/* Every op has a line, and every line a text for each input. Kernels may not be called otherwise: they would read what
 * is not there. */
static void test_every_op(void) {
  for (int i = 0; i < TFU_COUNT(ops); i++) {
    int found = 0;
    for (int k = 0; k < TFU_COUNT(rows); k++) found |= rows[k].op == ops[i];
    found |= ops[i] == &tfu_jit; /* its kernels are texts: tests/jit */
    /* They move what slots and reports hold: tests/staging. */
    found |= ops[i] == &tfu_stage || ops[i] == &tfu_unstage || ops[i] == &tfu_report;
    found |= ops[i] == &tfu_advance || ops[i] == &tfu_chain; /* integers alone, and other ops: tests/generation */
    CHECK_FOR(found, "op %s has no line in rows[] of this file: add one", ops[i]->name);
  }
  for (int k = 0; k < TFU_COUNT(rows); k++) {
    const int wanted = count_of(rows[k].op->in), given = count_of(rows[k].in);
    CHECK_FOR(given == wanted, "op %s has %d inputs, and its line \"%s\" in rows[] of this file %d: write one for each",
              rows[k].op->name, wanted, rows[k].set, given);
  }
}

/* Neither an odd address, nor sharing memory, nor what was there before changes a bit. Of large shapes, which are for
 * what is cut into pieces, dtypes take turns. */
static void test_placement(void) {
  static const tfu_shape shapes[] = {SHAPE(1), SHAPE(7, 3), SHAPE(2, 5, 129), SHAPE(70, 1030), SHAPE(MANY(33000), 3)};
  for (int i = 0; i < TFU_COUNT(rows) * TFU_COUNT(shapes) * TFU_FLOATS; i++) {
    const int row = i / TFU_COUNT(shapes) / TFU_FLOATS, shape = i / TFU_FLOATS % TFU_COUNT(shapes);
    if (shape >= 3 && (row + shape) % TFU_FLOATS != i % TFU_FLOATS) continue;
    const sample plain = sample_of(&rows[row], i % TFU_FLOATS, shapes[shape]);
    sample odd = plain, shared = plain;
    odd.offset = 1;
    odd.before = 0x3c;
    shared.in_place = 1;
    const outcome want = run_sample(&plain), moved = run_sample(&odd);
    CHECK_FOR(want.elements > 0 && same(&want, &moved), SAMPLE_TEXT(plain));
    if (!plain.row->op->in_place) continue;
    const outcome in_place = run_sample(&shared);
    CHECK_FOR(same(&want, &in_place), SAMPLE_TEXT(plain));
  }
}

/* Nor of complex numbers, in the ops that take them. */
static void test_placement_of_complex_numbers(void) {
  static const tfu_shape shapes[] = {SHAPE(1), SHAPE(7, 3), SHAPE(2, 5, 129), SHAPE(70, 1030), SHAPE(MANY(33000), 3)};
  int found = 0;
  for (const row *w = rows; w < rows + TFU_COUNT(rows); w++) {
    int takes = 0;
    for (int i = 0; w->op->attr[i]; i++) takes |= !strcmp(w->op->attr[i], TFU_T_COMPLEX);
    for (int i = 0; takes && i < 2 * TFU_COUNT(shapes); i++, found++) {
      const sample plain = sample_of(w, i % 2 ? TFU_C128 : TFU_C64, shapes[i / 2]);
      sample odd = plain;
      odd.offset = 1;
      odd.before = 0x3c;
      const outcome want = run_sample(&plain), moved = run_sample(&odd);
      CHECK_FOR(want.elements > 0 && same(&want, &moved), SAMPLE_TEXT(plain));
    }
  }
  CHECK(found > 0);
}

/* Sums over nothing are zero, whichever dimension is empty; whatever else is left is written. */
static void test_empty(void) {
  static const tfu_shape shapes[] = {SHAPE(0), SHAPE(0, 8), SHAPE(3, 0, 8), SHAPE(5, 0)};
  for (int i = 0; i < TFU_COUNT(rows) * TFU_COUNT(shapes) * TFU_FLOATS; i++) {
    sample s = sample_of(&rows[i / TFU_COUNT(shapes) / TFU_FLOATS], i % TFU_FLOATS,
                         shapes[i / TFU_FLOATS % TFU_COUNT(shapes)]);
    const outcome first = run_sample(&s);
    s.before = 0x3c;
    const outcome second = run_sample(&s);
    const char *rest = setting(s.row, "rest");
    const int more = rest && (*rest == 'a' || tfu_cols(&s.x) == 0);
    CHECK_FOR(same(&first, &second) && (first.zero || more), SAMPLE_TEXT(s));
  }
}

/* An allocation that fails, whichever it is, is said to have failed; what then runs without it computes the same. */
static void test_scratch(void) {
  int failed = 0;
  for (int i = 0; i < TFU_COUNT(rows); i++) {
    sample s = sample_of(&rows[i], TFU_BF16, (tfu_shape)SHAPE(50, 20));
    const outcome want = run_sample(&s);
    outcome o = {.refused = 1};
    for (s.refused = 0; o.refused; s.refused++) {
      o = run_sample(&s);
      CHECK_FOR((o.refused && o.code == TFU_EXHAUSTED) || same(&want, &o), SAMPLE_TEXT(s));
      failed += o.code == TFU_EXHAUSTED;
    }
  }
  CHECK(failed > 0);
}

static const tfu_shape thread_shapes[] = {SHAPE(1, MANY(100003)), SHAPE(MANY(4099), 20), SHAPE(130, 1031),
                                          SHAPE(MANY(100003), 1)};
enum { THREAD_SAMPLES = TFU_COUNT(rows) * TFU_COUNT(thread_shapes) };

/* Dtypes take turns. */
static sample thread_sample(int i) {
  const int row = i / TFU_COUNT(thread_shapes), shape = i % TFU_COUNT(thread_shapes);
  return sample_of(&rows[row], (tfu_dtype)((row + shape) % TFU_FLOATS), thread_shapes[shape]);
}

typedef struct results {
  char threads[8];
  outcome of[THREAD_SAMPLES];
} results;

static int run_in_child(void *arg) {
  results *r = arg;
  setenv("TFUSE_NUM_THREADS", r->threads, 1); /* read when the child starts its own threads */
  for (int i = 0; i < THREAD_SAMPLES; i++) {
    const sample s = thread_sample(i);
    r->of[i] = run_sample(&s);
  }
  return tfu_threads() == atoi(r->threads);
}

/* One thread or many: the same bits. */
static void test_thread_counts(void) {
  static const char *const threads[] = {"1", "2", "7"};
  results *r = mmap(NULL, 3 * sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int k = 0; k < 3; k++) {
    strcpy(r[k].threads, threads[k]);
    CHECK_FOR(in_child(run_in_child, &r[k]), "%s threads", threads[k]);
  }
  for (int i = 0; i < THREAD_SAMPLES; i++) {
    const sample s = thread_sample(i);
    CHECK_FOR(same(&r[0].of[i], &r[1].of[i]) && same(&r[0].of[i], &r[2].of[i]), SAMPLE_TEXT(s));
  }
  munmap(r, 3 * sizeof *r);
}

static outcome alone[TFU_COUNT(rows)];

static void *run_all(void *first) {
  for (int i = 0; i < TFU_COUNT(rows); i++) {
    const int k = (i + (int)(intptr_t)first) % TFU_COUNT(rows);
    const sample s = sample_of(&rows[k], TFU_F32, (tfu_shape)SHAPE(130, 1031));
    const outcome o = run_sample(&s);
    if (first) CHECK_FOR(same(&alone[k], &o), SAMPLE_TEXT(s));
    else alone[k] = o;
  }
  return NULL;
}

/* Eight callers at once, each with its own data, at different ops. */
static void test_concurrent_calls(void) {
  enum { THREADS = 8 };
  pthread_t threads[THREADS];
  run_all(NULL);
  for (intptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, run_all, (void *)(1 + i / 2)) == 0); /* two at a time at the same */
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

int main(void) {
  setenv("TFUSE_NUM_THREADS", "3", 1); /* more than one, however many cores there are */
  test_every_op();
  if (failures) return verdict();
  test_placement();
  test_placement_of_complex_numbers();
  test_empty();
  test_scratch();
  test_thread_counts();
  test_concurrent_calls();
  return verdict();
}
