"""Token-wise layers, the Transformer block, and recurrent layers: what models are built of."""
