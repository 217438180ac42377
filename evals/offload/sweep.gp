# evals/offload/sweep.gp - tokens/s by budget, a line for each batch; thin: the bound.
#   gnuplot -e "csv='evals/results/offload/offload-DATE.csv'; png='evals/results/offload/offload-DATE.png'" evals/offload/sweep.gp
set datafile separator ","
set terminal pngcairo size 900,600 font "sans,10"
set output png
set title "Decode, an 8.8 GB model in less memory (thin: what an optimal cache and the disk's best rate would allow)"
set xlabel "--host-mem, GB"
set ylabel "tokens/s, all sequences together"
set logscale y 2
set grid ytics lc rgb "#dddddd"
set key left top
batches = "1 4 8 16 32"
cut(b) = sprintf("< awk -F, '$2 == \"decode\" && $3 == %s { sub(\"G\", \"\", $1); print $1 \",\" $4 \",\" $5 }' %s", b, csv)
plot for [i=1:words(batches)] cut(word(batches, i)) using 1:2 with linespoints lw 2 lc i pt i title "batch ".word(batches, i), \
     for [i=1:words(batches)] cut(word(batches, i)) using 1:3 with lines lw 0.5 lc i notitle
