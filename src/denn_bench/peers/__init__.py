"""Compare denn with other tools: same documents, same cores, same time, each tool in its own environment."""
