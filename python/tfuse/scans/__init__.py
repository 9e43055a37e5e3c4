"""Running results along an axis: cumsum, cumprod, cummax, cumulative_logsumexp."""
