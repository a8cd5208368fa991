"""Reports: the record of a job as numbers and words, and one page that holds its pictures, which `dpca.plots` draws."""
