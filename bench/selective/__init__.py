"""Selective scheduling: bytes and seconds of streamed epochs with and without picked rows."""
