# Tries everything on files and directories with each flag, and says what came of it.
set -u
try() {
  local what=$1 out
  shift
  if out=$(bash -c "$*" 2>&1); then
    echo "$what: done"
  else
    case $out in
      *"not permitted"*) echo "$what: EPERM" ;;
      *"denied"*) echo "$what: EACCES" ;;
      *) echo "$what: failed $out" ;;
    esac
  fi
}
trap 'chattr -R -ia . 2>/dev/null' EXIT
for flag in i a; do
  mkdir d-$flag && cd d-$flag
  echo data > f; echo other > g; mkdir dir; echo inner > dir/inner; mkdir dir/sub
  chattr +$flag f dir; lsattr -d f dir | tr -d 'e-'
  try read cat f
  try append 'echo more >> f'
  try write 'dd if=/dev/zero of=f bs=1 count=1 conv=notrunc status=none'
  try O_TRUNC ': > f'
  try truncate 'truncate -s 1 f'
  try fallocate 'fallocate -l 65536 f'
  try punch 'fallocate -p -o 0 -l 4096 f'
  try chmod 'chmod 600 f'
  try chown 'chown 5 f'
  try touch 'touch -c f'
  try 'touch -d' 'touch -c -d 2001-01-01 f'
  try setfattr 'setfattr -n user.a -v b f'
  try setfacl 'setfacl -m u:5:r f'
  try link 'ln f link'
  try rename 'mv f renamed'
  try 'rename over' 'mv -f g f'
  try unlink 'rm -f f'
  try 'create in directory' 'touch dir/new'
  try 'mkdir in directory' 'mkdir dir/newdir'
  try 'symlink in directory' 'ln -s x dir/symlink'
  try 'rename into directory' 'cp -n g h; mv h dir/h'
  try 'unlink in directory' 'rm -f dir/inner'
  try 'rmdir in directory' 'rmdir dir/sub'
  try 'rename out of directory' 'mv dir/inner out'
  try 'rename within directory' 'mv dir/inner dir/inner2'
  try 'write in directory' 'echo x >> dir/inner'
  try 'remove directory' 'rmdir dir'
  try 'rename directory' 'mv dir dir2; mv dir2 dir'
  try 'chmod directory' 'chmod 700 dir'
  try 'access' 'test -w f'
  try 'user clears' "chmod 777 . ; setpriv --reuid=5001 --regid=5001 --clear-groups chattr -$flag f"
  chattr -$flag f dir
  try 'afterwards' 'echo more > f && rm -r f dir'
  cd ..
done
