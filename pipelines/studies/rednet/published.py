"""Tables 5.1 to 5.3 of the thesis (Alakkari 2020): mean accuracy on the test set, and its standard deviation, in %."""

from __future__ import annotations

#: Table 5.1, LFW-14-subject, by the names of our rows.
TABLE_5_1 = {
    "RedNet, own k = 1": (73.1, 6.23),
    "RedNet, own k = 2": (75.95, 6.14),
    "RedNet, own k = 3": (76.45, 5.7),
    "RedNet, own k = 4": (75.36, 6.77),
    "RedNet, own k = 10": (75.43, 5.93),
    "RedNet, gray": (67.48, 7.23),
    "RedNet, color": (73.0, 5.78),
    "RedNet, batch normalization": (58.6, 7.34),
}
#: Table 5.2, networks on photographs of 224 to 229 pixels a side, LFW-14-subject.
TABLE_5_2 = {
    "AlexNet": (58.98, 7.3),
    "GoogleNet": (64.83, 10.18),
    "ResNet-18": (44.37, 11.0),
    "Inception-v3": (65.48, 9.41),
    "Xception": (54.5, 14.95),
}
#: Table 5.3, LFW-24-subject; the other networks had 32 x 32 pixels.
TABLE_5_3 = {
    "RedNet, own k = 3": (67.52, 3.96),
    "RedNet, color": (65.83, 3.9),
    "ResNet-56": (42.03, 4.78),
    "Wide-ResNet 28x10": (54.5, 4.3),
    "DenseNet-100": (49.28, 5.57),
}
