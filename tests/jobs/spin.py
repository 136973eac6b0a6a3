"""A program that keeps cores busy: the neighbour of some jobs, never part of one. spin.py N [nice]"""

import os
import sys

if len(sys.argv) > 2:
    os.nice(int(sys.argv[2]))
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
x = 1
while True:
    x = (x * 1103515245 + 12345) % 2147483648
