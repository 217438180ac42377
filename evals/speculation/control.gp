# Draws run.sh control: tokens/s over no drafts, for every fixed gamma and for the controller, by batch;
# thin: the bound by bytes and operations.
set datafile separator ","
set terminal pngcairo size 900,560 font "sans,10"
set output png
set logscale x 2
set grid lc rgb "#dddddd"
set xlabel "sequences"
set ylabel "times as fast as without drafts"
set key left top
cut(g) = sprintf("< awk -F, '$2 == \"%s\"' %s", g, csv)
plot for [i=1:words(gammas)] cut(word(gammas, i)) using 1:5 with linespoints lw 1 lc i pt i title word(gammas, i)." drafted", \
     cut("auto") using 1:5:6 with yerrorbars lw 2 lc rgb "black" pt 7 notitle, \
     cut("auto") using 1:5 with lines lw 3 lc rgb "black" title "the controller", \
     cut("auto") using 1:7 with lines lw 1 dt 3 lc rgb "black" title "bytes and operations allow", \
     1 with lines lc rgb "#888888" notitle
