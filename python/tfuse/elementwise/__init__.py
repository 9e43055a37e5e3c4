"""Ops that compute each element for itself: activations, gates, dropout, rotary embedding."""
