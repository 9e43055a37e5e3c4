/* attention_served.c - which attention cuDNN is asked for, and which is left to our own kernels: what is not computed
 * right, not in memory linear in the lengths, or not the same way as everywhere else. */
#include <limits.h>
#include <string.h>

#include "kernels/attention/attention_cudnn.h"

/* ---- what is asked ---- */

/* Limits that limit nothing are left out: plainer graphs are faster, and served by more versions. Where the caller
 * gives lengths, each sequence has a shift of its own. */
static void read_band(const attention_args *a, int own_shifts, tfu_attention_key *k) {
  const int shift = a->align ? a->keys - a->queries : 0;
  k->left = a->left < 0 || (!own_shifts && a->left - shift >= a->queries - 1) ? -1 : a->left;
  k->right = a->right < 0 || (!own_shifts && a->right + shift >= a->keys - 1) ? -1 : a->right;
  k->align = (own_shifts || shift != 0) && (k->left >= 0 || k->right >= 0);
}

void tfu_attention_ask(tfu_attention_request *r, int ordinal) {
  const attention_args *a = r->a;
  tfu_attention_key *k = &r->key;
  r->given_lengths = a->query_lengths || a->key_lengths;
  memset(k, 0, sizeof *k);
  k->backward = r->backward;
  k->dtype = (int32_t)r->dtype;
  k->ordinal = ordinal;
  k->batch = a->batch;
  k->heads = a->heads;
  k->key_heads = a->key_heads;
  k->head_dim = a->head_dim;
  k->value_dim = a->value_dim;
  k->queries = a->queries;
  k->keys = a->keys;
  k->scale = a->scale;
  read_band(a, a->align && r->given_lengths, k);
  k->bias = a->bias != NULL;
  for (int i = 0; i < 4 && a->bias; i++) k->bias_along[i] = a->bias_step[i] != 0 || (i == 3 && a->keys == 1);
  /* The gradient counts what is beyond the last whole tile of 128 as scores of 0, which gives NaN where all true scores
   * are low (seen through 9.26): lengths mask that, be they the axes' own sizes. */
  k->lengths = r->given_lengths || (r->backward && (a->queries % 128 || a->keys % 128));
}

/* ---- what is served ---- */

static int other_dtype(const tfu_attention_request *r) { return r->dtype != TFU_F16 && r->dtype != TFU_BF16; }
static int old_device(const tfu_attention_request *r) { return r->capability < 80; }
static int dropout(const tfu_attention_request *r) { return r->a->seed != NULL; }
static int soft_cap(const tfu_attention_request *r) { return r->a->soft_cap > 0; }
static int mask(const tfu_attention_request *r) { return r->a->mask != NULL; }
static int ragged(const tfu_attention_request *r) { return r->a->ragged || r->a->table; }
static int always(const tfu_attention_request *r) { return r != NULL; }
static int ordered(const tfu_attention_request *r) { return r->backward && r->deterministic; }
static int bias_gradient(const tfu_attention_request *r) { return r->backward && r->a->dbias; }
static int stats_gradient(const tfu_attention_request *r) { return r->backward && r->a->dstats; }
static int odd_head_dim(const tfu_attention_request *r) { return r->key.head_dim % 8 || r->key.value_dim % 8; }
static int wide_head(const tfu_attention_request *r) { return r->key.head_dim > 256 || r->key.value_dim > 256; }
static int stretched_keys(const tfu_attention_request *r) { return r->key.bias && !r->key.bias_along[3]; }
static int one_pair(const tfu_attention_request *r) { return r->backward && r->key.queries == 1 && r->key.keys == 1; }
static int one_query(const tfu_attention_request *r) { return r->key.queries == 1; }
static int window(const tfu_attention_request *r) { return r->key.left >= 0; }
static int shifted(const tfu_attention_request *r) { return r->key.align; }
static int shifted_window(const tfu_attention_request *r) { return window(r) && shifted(r); }
static int shifted_bias(const tfu_attention_request *r) { return shifted(r) && r->key.bias; }
static int two_sided(const tfu_attention_request *r) { return r->key.right > 0 || (window(r) && r->key.right != 0); }
static int window_bias(const tfu_attention_request *r) { return window(r) && r->key.bias; }
static int uneven_head(const tfu_attention_request *r) {
  return r->backward && r->key.head_dim > 128 && !(r->key.head_dim == 192 && r->key.value_dim == 128);
}
static int wide_elsewhere(const tfu_attention_request *r) { return r->key.head_dim > 128 && r->capability / 10 != 9; }

/* Queries that come too early for every key, or too late. */
static int keyless(const tfu_attention_request *r) { return r->key.queries > r->key.keys && (shifted(r) || window(r)); }

static int empty(const tfu_attention_request *r) {
  const tfu_attention_key *k = &r->key;
  return !k->batch || !k->heads || !k->queries || !k->keys || !k->head_dim || !k->value_dim;
}

static int huge(const tfu_attention_request *r) {
  const tfu_attention_key *k = &r->key;
  const int dim = k->head_dim > k->value_dim ? k->head_dim : k->value_dim;
  const int64_t rows = (int64_t)k->batch * k->heads * (k->queries > k->keys ? k->queries : k->keys);
  int64_t bias = k->bias;
  const int sizes[4] = {k->batch, k->heads, k->queries, k->keys};
  for (int i = 0; i < 4; i++)
    if (k->bias_along[i]) bias *= sizes[i];
  return rows > INT_MAX / dim || bias > INT_MAX;
}

static int misaligned(const tfu_attention_request *r) {
  const attention_args *a = r->a;
  const void *all[] = {a->query, a->key,     a->value,  a->bias, a->output,
                       a->stats, a->doutput, a->dquery, a->dkey, a->dvalue};
  for (int i = 0; i < TFU_COUNT(all); i++)
    if ((uintptr_t)all[i] % 16) return 1;
  return 0;
}

/* For versions from <= version < until; 91002 is 9.10.2. The versions are those that cudnn-frontend checks for, the
 * limits without versions are our own. */
enum { EVER = INT_MAX };
static const struct rule {
  int from, until;
  int (*applies)(const tfu_attention_request *);
  const char *why;
} rules[] = {
    {0, EVER, other_dtype, "cuDNN attention is for float16 and bfloat16"},
    {0, EVER, old_device, "cuDNN attention needs compute capability 8.0"},
    {0, EVER, empty, "there is nothing to attend to"},
    {0, EVER, ragged, "ragged sequences and pages are our own kernel's"},
    {0, EVER, dropout, "cuDNN would draw other random numbers than philox.h"},
    {0, EVER, soft_cap, "a soft cap is our own kernel's"},
    {0, EVER, mask, "cuDNN attention takes no boolean mask"},
    {0, EVER, keyless, "some queries attend to no key"},
    {0, EVER, odd_head_dim, "cuDNN attention needs head dims that are multiples of 8"},
    {0, EVER, wide_head, "cuDNN attention needs head dims of at most 256"},
    {0, EVER, stretched_keys, "cuDNN attention needs a bias with an element for every key"},
    {0, EVER, shifted_bias, "cuDNN attention takes no bias where the last steps are aligned"},
    {0, EVER, huge, "cuDNN attention is for tensors below 2^31 elements"},
    {0, EVER, misaligned, "cuDNN attention needs tensors on 16-byte boundaries"},
    /* The ways of cuDNN to both of these keep the gradients of all scores, batch * heads * queries * keys. */
    {0, EVER, ordered, "cuDNN attention has no repeatable gradient in linear memory"},
    {0, EVER, bias_gradient, "cuDNN attention has no gradient of the bias in linear memory"},
    {0, EVER, stats_gradient, "cuDNN attention has no gradient of stats"},
    {0, EVER, one_pair, "cuDNN attention has no gradient of one query and one key"},

    {0, 90600, shifted, "cuDNN before 9.6 aligns last steps only at multiples of 64"},
    {0, 91000, one_query, "cuDNN before 9.10 is for more than one query"},
    {0, 91000, wide_elsewhere, "cuDNN before 9.10 has head dims above 128 on compute capability 9.0 only"},
    {0, 91002, two_sided, "cuDNN before 9.10.2 has no window that is not causal"},
    {0, 91002, window_bias, "cuDNN before 9.10.2 has no window with bias"},
    {0, 91002, shifted_window, "cuDNN before 9.10.2 has no window where the last steps are aligned"},
    {91000, 91002, always, "cuDNN 9.10.0 and 9.10.1 compute attention wrongly"},
    {91100, 91300, uneven_head, "cuDNN 9.11 and 9.12 have gradients of head dims above 128 only for 192 with 128"},
    {91400, 91401, two_sided, "cuDNN 9.14.0 computes windows wrongly that are not causal"},
};

const char *tfu_attention_refusal(const tfu_attention_request *r, int version) {
  for (int i = 0; i < TFU_COUNT(rules); i++)
    if (version >= rules[i].from && version < rules[i].until && rules[i].applies(r)) return rules[i].why;
  return NULL;
}
