"""Models: one decoder for Qwen3, Qwen3-MoE, Qwen2 and Llama; checkpoints."""
