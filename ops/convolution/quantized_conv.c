/* A convolution in 8 bits. With x [batch, in…, channels] and a kernel [outputs, window…, channels / groups] of int8:
 *
 *   sum[n, o, k] = the convolution of x and kernel, as ops/convolution/conv.c has it, exact in int32
 *   v = sum * scale[k] + bias[k] + residual * residual_scale,  relu of it where `relu`
 *   y = v as a float, or int8: round(v * y_scale), to even, clipped to -127 … 127
 *
 * A residual of int8 stands for its numbers times residual_scale; one of floats is of y's type, and is added as it is.
 * So scale is the product of what one step of x and one of the kernel's output k stand for, and results of int8 are
 * what the next convolution takes. Terms are few enough for int32. */
#include "ops/convolution/quantized_conv.h"

enum { MOST_TERMS = (1 << 17) - 1 }; /* of -128 times -128 */

TFU_SHAPE_RULE(quantized_conv_shape) {
  const tfu_shape *x = &in[TFU_QCONV_X], *kernel = &in[TFU_QCONV_KERNEL], *residual = &in[TFU_QCONV_RESIDUAL];
  const tfu_shape as_conv = tfu_qconv_kernel(kernel);
  int64_t terms = 1;
  TFU_REQUIRE(
      err, kernel->rank == TFU_UNKNOWN || (kernel->rank >= 3 && kernel->rank <= 5),
      "kernel must be [outputs, spatial axes, channels of a group] with one to three spatial axes, got shape %s",
      tfu_show(kernel).text);
  TFU_TRY(tfu_conv_shape(x, &as_conv, &in[TFU_QCONV_SIZES], &out[0], attr, err));
  for (int i = 1; i < kernel->rank; i++) terms *= kernel->dim[i] < 0 ? 1 : kernel->dim[i];
  TFU_REQUIRE(err, terms <= MOST_TERMS,
              "kernel must have at most %d numbers for an output, since sums are int32, got shape %s", (int)MOST_TERMS,
              tfu_show(kernel).text);
  for (int i = TFU_QCONV_SCALE; i <= TFU_QCONV_BIAS; i++) {
    const char *const name = i == TFU_QCONV_SCALE ? "scale" : "bias";
    if (in[i].rank == TFU_UNKNOWN || (i == TFU_QCONV_BIAS && !tfu_given(&in[i]))) continue;
    TFU_REQUIRE(err, in[i].rank == 1 && (kernel->rank == TFU_UNKNOWN || tfu_may_be(in[i].dim[0], kernel->dim[0])),
                "%s must be a vector with one value per output, the first axis of kernel %s, got shape %s", name,
                tfu_show(kernel).text, tfu_show(&in[i]).text);
  }
  return tfu_given(residual) ? tfu_match("residual", residual, "the convolution", &out[0], err) : TFU_OK;
}

const tfu_op tfu_quantized_conv = {
    .name = "QuantizedConv",
    .doc =
        "int8 x convolved with int8 kernel, times scale, + bias + residual, then relu or nothing; as floats, or as "
        "int8 "
        "for the next one. sizes has the result's spatial axes.",
    .in = {"x: Q", "kernel: Q", "scale: float", "bias: float", "residual: R", "sizes: bool"},
    .out = {"y: Y"},
    .attr = {"relu: bool = false", TFU_CONV_WINDOW_ATTRS, "residual_scale: float = 1.0", "y_scale: float = 1.0",
             "Q: {int8} = DT_INT8", "R: {int8, float, half, bfloat16} = DT_INT8",
             "Y: {int8, float, half, bfloat16} = DT_INT8"},
    .shape = quantized_conv_shape,
    TFU_KERNELS(quantized_conv),
    .capturable = 1,
};
