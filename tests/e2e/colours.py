"""Whether the colour-blind tell colours of a terminal apart."""

# How the three kinds of dichromats see linear RGB: Machado, Oliveira, Fernandes (2009), "A Physiologically-based Model for Simulation of
# Color Vision Deficiency", severity 1.0.
DICHROMATS = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(index, seen):
    """CIE L*a*b* of one of xterm's 256 colours (16 to 231: a cube of six levels) as somebody sees it."""
    level = [0, 95, 135, 175, 215, 255]
    n = index - 16
    linear = [((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in (level[n // 36], level[n // 6 % 6], level[n % 6])]
    r, g, b = (min(1, max(0, sum(m * c for m, c in zip(row, linear)))) for row in seen)
    xyz = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b, (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def assert_told_apart(used):
    """Of these of the 256 colours every two look different to everybody."""
    for who, seen in DICHROMATS.items():
        for a in used:
            for b in used - {a}:
                difference = sum((x - y) ** 2 for x, y in zip(lab(a, seen), lab(b, seen))) ** 0.5
                assert difference > 10, (who, a, b)  # 2.3 is what can just be seen
