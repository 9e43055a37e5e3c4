/* rules.h - the rules of optimizers, and the numbers that they take. Host and op rows. */
#ifndef TFUSE_RULES_H_
#define TFUSE_RULES_H_

/* Name, and how many slots (momentum, velocity …) each weight has. */
#define TFU_RULES(X) X(sgd, 0) X(momentum, 1) X(nesterov, 1) X(adam, 2) X(amsgrad, 3) X(lion, 1) X(lamb, 2)
#define TFU_RULE_ATTR "rule: {'sgd', 'momentum', 'nesterov', 'adam', 'amsgrad', 'lion', 'lamb'} = 'adam'"

typedef enum tfu_rule {
#define X(name, slots) TFU_RULE_##name,
  TFU_RULES(X)
#undef X
      TFU_RULE_COUNT
} tfu_rule;

/* Lists and attributes of TensorsUpdate, as kernels see them. */
enum {
  TFU_UPDATE_GRADIENTS,
  TFU_UPDATE_WEIGHTS,
  TFU_UPDATE_SLOTS,
  TFU_UPDATE_RATE,
  TFU_UPDATE_STEP,
  TFU_UPDATE_HYPER,
  TFU_UPDATE_NORM,
  TFU_UPDATE_SCALE
};
enum { TFU_UPDATE_NEW_WEIGHTS, TFU_UPDATE_NEW_SLOTS };
enum { TFU_UPDATE_RULE, TFU_UPDATE_SQUARES };

enum { TFU_MOST_SLOTS = 3, TFU_HYPERS = 8 };

#endif
