"""The peers, each with what it takes to give it our weights and our work."""
