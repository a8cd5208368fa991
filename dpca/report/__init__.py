"""Reports: the record of a job as numbers, words, pictures and one page. Only what draws imports this room's plots."""
