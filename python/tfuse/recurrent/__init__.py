"""Recurrent layers over whole sequences: LSTM and GRU."""
