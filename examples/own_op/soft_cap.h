/* soft_cap.h - the formulas, for CPU and GPU alike. */
TFU_CHANNELS(soft_cap, 1, 1, S, 1, 0, { y[0] = w[0] * tanh(x[0] / w[0]); })

TFU_CHANNELS(soft_cap_grad, 2, 1, S, 1, 1, {
  const REAL dy = x[0], u = x[1] / w[0], t = tanh(u);
  y[0] = dy * (1 - t * t);           /* dx   */
  s[0] = dy * (t - u * (1 - t * t)); /* dcap */
})
