"""denn beside what users would pick instead: same documents, same cores, same time, each in its own environment."""
