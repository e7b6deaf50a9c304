//! Names of pools and of the OSTs in them, as `lctl pool_add` accepts them: `stria.fast`,
//! `stria-OST[0-6/2,a]`, `OST0003_UUID`.

use types::OstIndex;

/// Splits `FSNAME.POOL`.
pub fn parse_pool(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('.') {
        Some((fsname, pool)) if !fsname.is_empty() && !pool.is_empty() => Ok((fsname, pool)),
        _ => Err(format!("'{text}': expected FSNAME.POOL")),
    }
}

/// The indices of `[FSNAME-]OSTxxxx[_UUID]` or `[FSNAME-]OST[x-y/step,z]`, all in hexadecimal but
/// the step.
pub fn parse_osts(fsname: &str, text: &str) -> Result<Vec<OstIndex>, String> {
    let problem = || format!("'{text}': expected an OST of {fsname}, as {fsname}-OST0003 or {fsname}-OST[0-6/2,a]");
    let name = text.strip_suffix("_UUID").unwrap_or(text);
    let name = name.strip_prefix(fsname).and_then(|rest| rest.strip_prefix('-')).unwrap_or(name);
    let indices = name.strip_prefix("OST").ok_or_else(problem)?;
    let number = |digits: &str| u16::from_str_radix(digits, 16).map_err(|_| problem());
    let Some(list) = indices.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return Ok(vec![OstIndex(number(indices)?)]);
    };
    let mut osts = Vec::new();
    for part in list.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<usize>().ok().filter(|step| *step > 0).ok_or_else(problem)?),
            None => (part, 1),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(problem());
        }
        osts.extend((first..=last).step_by(step).map(OstIndex));
    }
    Ok(osts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn osts_are_read_as_lctl_reads_them() {
        let parse = |text| parse_osts("stria", text).map(|osts| osts.iter().map(|ost| ost.0).collect::<Vec<_>>());
        assert_eq!(parse("stria-OST0003"), Ok(vec![3]));
        assert_eq!(parse("OST000a_UUID"), Ok(vec![10]));
        assert_eq!(parse("stria-OST[0-6/2,a]"), Ok(vec![0, 2, 4, 6, 10]));
        for wrong in ["", "stria-MDT0000", "other-OST0001", "OST", "OST[3-1]", "OST[0-4/0]", "OST[", "OST12345"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_pool("stria.fast"), Ok(("stria", "fast")));
        assert!(parse_pool("fast").is_err() && parse_pool(".fast").is_err() && parse_pool("stria.").is_err());
    }
}
