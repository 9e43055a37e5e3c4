/* A word for each row of logits, drawn with probability softmax(logits / temperature) among those that are kept:
 *
 *   the top_k most likely ones (0: all), and of these the first ones in the order of probability, up to and with the
 * one by which their sum exceeds top_p (1 or more: all).
 *
 * Of equal logits the first counts as more likely. Temperature 0 gives the most likely one. A row's word depends on its
 * own logits, seed and step alone: word i has the score logits[i] / temperature - log(e), e being the exponential
 * variate that bits i of Philox with key `seed` and counter `step` make, and the largest score is drawn (Gumbel's way).
 * NaN is never drawn, unless there is nothing else: then it is word 0. */
#include "tfuse.h"

static tfu_code rule(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  static const char *const names[] = {"logits", "temperature", "top_k", "top_p", "seeds", "steps"};
  (void)attr;
  out[0].rank = TFU_UNKNOWN;
  if (in[0].rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, in[0].rank == 2, "logits must be [rows, words], got shape %s", tfu_show(&in[0]).text);
  TFU_REQUIRE(err, in[0].dim[1] == TFU_UNKNOWN || (in[0].dim[1] > 0 && in[0].dim[1] < 1 << 28),
              "logits must have 1 to 2^28 words, got shape %s", tfu_show(&in[0]).text);
  out[0] = tfu_leading(&in[0]);
  for (int i = 1; i < TFU_COUNT(names); i++) TFU_TRY(tfu_match(names[i], &in[i], "rows of logits", &out[0], err));
  return TFU_OK;
}

const tfu_op tfu_sample_logits = {
    .name = "SampleLogits",
    .doc = "Draws a word for each row of logits, among the top_k most likely and up to the probability top_p.",
    .in = {"logits: T", "temperature: float", "top_k: int64", "top_p: float", "seeds: int64", "steps: int64"},
    .out = {"ids: int64"},
    .attr = {TFU_T_FLOATS},
    .shape = rule,
    TFU_KERNELS(sample_logits),
    .capturable = 1,
};
