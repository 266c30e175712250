"""The study of rectified pairs: hops against quality, on Morse code and on novels."""
