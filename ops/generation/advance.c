/* What lies between two steps of a generation: the word that was drawn for each sequence joins it, and the sequence
 * ends where the word is one of `stops`, or where its length reaches its limit.
 *
 *   tokens[b, lengths[b]] = ids[b];  lengths[b] += 1;  done[b] = ids[b] in stops or lengths[b] >= limits[b]
 *
 * A sequence that is done stays as it is. The next step begins with `current`, the last word of each, at `positions`,
 * [batch, 1], whose key and value go to row `places` of a cache in pages: page table[b, p / page_size] of page_size
 * rows. Of a sequence that is done places is -1. In a chain all but ids is written in place. */
#include "ops/generation/advance.h"

static tfu_code rule(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  static const char *const names[] = {"ids", "tokens", "lengths", "done", "limits"};
  TFU_REQUIRE(err, !attr || attr[TFU_ADVANCE_PAGE].i > 0, "page_size must be positive, got %lld",
              (long long)attr[TFU_ADVANCE_PAGE].i);
  for (int i = 1; i <= 6; i += 5)
    TFU_REQUIRE(err, in[i].rank == TFU_UNKNOWN || in[i].rank == 2, "%s must have two axes, got shape %s",
                i == 1 ? "tokens" : "table", tfu_show(&in[i]).text);
  TFU_REQUIRE(err, in[5].rank == TFU_UNKNOWN || in[5].rank == 1, "stops must be a vector, got shape %s",
              tfu_show(&in[5]).text);
  TFU_REQUIRE(err, in[0].rank == TFU_UNKNOWN || in[0].rank == 1, "ids must be a vector, got shape %s",
              tfu_show(&in[0]).text);
  for (int i = 2; i < TFU_COUNT(names); i++) TFU_TRY(tfu_match(names[i], &in[i], "ids", &in[0], err));
  for (int i = 1; i <= 6; i += 5)
    if (in[i].rank == 2 && in[0].rank == 1)
      TFU_REQUIRE(err, tfu_may_be(in[i].dim[0], in[0].dim[0]), "%s must have a row for each of ids %s, got shape %s",
                  i == 1 ? "tokens" : "table", tfu_show(&in[0]).text, tfu_show(&in[i]).text);
  for (int i = 0; i < 3; i++) out[i] = in[1 + i];
  out[3] = out[4] = in[0];
  out[5] = in[0].rank == 1 ? tfu_append(&in[0], 1) : in[0];
  return TFU_OK;
}

const tfu_op tfu_advance = {
    .name = "Advance",
    .doc = "Appends a word to each sequence that is not done, and says where the next step of each begins.",
    .in = {"ids: int64", "tokens: int64", "lengths: int64", "done: int64", "limits: int64", "stops: int64",
           "table: int64"},
    .out = {"new_tokens: int64", "new_lengths: int64", "new_done: int64", "current: int64", "places: int64",
            "positions: int64"},
    .attr = {[TFU_ADVANCE_PAGE] = "page_size: int"},
    .shape = rule,
    TFU_KERNELS(advance),
    .capturable = 1,
};
