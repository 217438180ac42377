# Draws `spillway simulate moesd`: error by number of measurements; speed-up by batch size, true and fitted.
set datafile separator ","
set terminal pngcairo size 1100,460 font "Sans,10"
set output out
set multiplot layout 1,2
set title "Mean squared error over all 228, by measurements fitted"
set xlabel "measurements"; set ylabel "error"; set logscale xy; set grid; set key top right
plot table skip 1 using 2:6 with points pt 7 title "every n-th", \
     table skip 1 using 2:8 with points pt 6 title "as many, spread evenly", \
     table skip 1 using 2:5 with lines dt 2 title "noise"
unset logscale
set title "Speed-up by batch size, 4 drafted, fitted to 21"
set xlabel "sequences"; set ylabel "speed-up"; set key top right
plot for [k in "2 8 32"] curve skip 1 using ($1 == k && $2 == 4 ? $3 : 1/0):4 with lines lw 2 title k." experts used", \
     for [k in "2 8 32"] curve skip 1 using ($1 == k && $2 == 4 ? $3 : 1/0):6 with points pt 6 notitle
unset multiplot
