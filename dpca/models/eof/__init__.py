"""`EOF`: empirical orthogonal functions of fields in time.

`fields` reads arrays with named axes; `anomalies`, `calendar` and `gaps` prepare them.
`rotation` and `significance` work on the modes.
"""
