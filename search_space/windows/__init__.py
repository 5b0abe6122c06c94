"""Windows: depthwise convolution and pooling, with channels last (`windows`) or first (`planes`), and their tiles.
Read first: `windows.Windows`.
May import: what `search_space` may, and `nests`.
"""
