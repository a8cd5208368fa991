"""Reports: the record of a job as numbers and tables, and an HTML page with its pictures, drawn by `dpca.plots`."""
