"""Jobs that make data and models: Countdown tasks, a random decoder, and synthetic queries for documents."""
