/* experts.h - arguments of RouteExperts and Experts, as kernels see them. */
#ifndef TFUSE_EXPERTS_H_
#define TFUSE_EXPERTS_H_

enum { TFU_ROUTE_TOP_K, TFU_ROUTE_NORMALIZED }; /* attributes of RouteExperts */
enum { TFU_ROUTE_WEIGHTS, TFU_ROUTE_NUMBERS };  /* and its outputs */

enum {
  TFU_EXPERTS_X,
  TFU_EXPERTS_WEIGHTS,
  TFU_EXPERTS_NUMBERS,
  TFU_EXPERTS_GATE,
  TFU_EXPERTS_UP,
  TFU_EXPERTS_DOWN,
  TFU_EXPERTS_RESIDUAL
};
enum { TFU_EXPERTS_ACTIVATION };

#endif
