"""Training of decoders on their own answers: by rewards (`grpo`), or by a teacher's distributions (`distill`)."""
