# Partitions a CSV file without quotes by the values of its second column: mawk -F, -v out=OUT -f split.awk INPUT
NR == 1 { head = $0; next }
!($2 in part) { part[$2] = out "/key=" $2 ".csv"; print head >part[$2] }
{ print >part[$2] }
