# Draws run.sh moving: tokens/s of each phase without drafts and with the controller.
set datafile separator ","
set terminal pngcairo size 900,480 font "sans,10"
set output png
set style data histograms
set style fill solid 0.8 noborder
set boxwidth 0.9
set grid ytics lc rgb "#dddddd"
set xlabel "users, phase after phase"
set yrange [0:*]
set ylabel "tokens/s"
set key left top
plot sprintf("< awk -F, 'NR > 1 && $2 != \"all\"' %s", csv) using 4:xtic(3) lc rgb "#999999" title "no drafts", \
     "" using 5 lc rgb "#336699" title "the controller"
