"""Data over time: the report of any stack, and chapter 6 of Alakkari 2020 on synthetic data."""
